package check

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
)

// documented returns the variables that docs/reference/configuration.md names for a command.
func documented(t *testing.T, component string) []string {
	t.Helper()
	page := file(t, "docs/reference/configuration.md")
	section := func(heading string) []string {
		_, text, found := strings.Cut(page, "\n### "+heading+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
		var names []string
		for _, row := range regexp.MustCompile("(?m)^\\| `(DUESTREAM_[A-Z_]+)` \\|").FindAllStringSubmatch(text, -1) {
			names = append(names, row[1])
		}
		if !found || len(names) < 5 {
			t.Fatalf("docs/reference/configuration.md: section %q has %d variables", heading, len(names))
		}
		return names
	}
	all := section("Every command that connects to Redis")
	logs := []string{"DUESTREAM_LOG_LEVEL", "DUESTREAM_LOG_FORMAT", "DUESTREAM_METRICS_ADDR"}
	switch component {
	case "bridge":
		return append(append(all, section("serve")...), section("gateway and serve")...)
	case "gateway":
		return append(append(append(all, logs...), "DUESTREAM_SHUTDOWN_TIMEOUT"), section("gateway and serve")...)
	case "push":
		return append(all, logs...)
	}
	return all
}

// notOffered are variables that the chart leaves out. Gateways and push runners are Deployments of their own, and a pod
// has no file that survives it.
var notOffered = map[string][]string{
	"bridge": {"DUESTREAM_HTTP_ADDR", "DUESTREAM_HTTP_TOKENS_FILE", "DUESTREAM_HTTP_FIRST_TOKEN_FILE",
		"DUESTREAM_HTTP_DURABILITY", "DUESTREAM_HTTP_TLS_CERT", "DUESTREAM_HTTP_TLS_KEY", "DUESTREAM_HTTP_TLS_CLIENT_CA",
		"DUESTREAM_ADMIN_ADDR", "DUESTREAM_ADMIN_ACCOUNTS_FILE", "DUESTREAM_DASHBOARD_READ_ONLY", "DUESTREAM_PUSH"},
	"gateway": {"DUESTREAM_HTTP_FIRST_TOKEN_FILE", "DUESTREAM_PUSH"},
}

// passwordFiles are left out, too: the variables without _FILE come from a Secret.
var passwordFiles = []string{"DUESTREAM_REDIS_PASSWORD_FILE", "DUESTREAM_SENTINEL_PASSWORD_FILE"}

// Each variable of a pod is a setting of its command. Each setting of a command is set by the chart, is a value of
// settings, or is left out on purpose.
func TestVariablesAreSettings(t *testing.T) {
	t.Parallel()
	used := map[string]map[string]bool{}
	for _, values := range valuesFiles {
		for _, p := range render(t, values).allPods(t) {
			component := p.labels["app.kubernetes.io/component"]
			known := documented(t, component)
			if used[component] == nil {
				used[component] = map[string]bool{}
			}
			seen := map[string]bool{}
			for _, e := range p.container.Env {
				if seen[e.Name] {
					t.Errorf("%s: %s has %s twice", values, p.name, e.Name)
				}
				seen[e.Name], used[component][e.Name] = true, true
				if strings.HasPrefix(e.Name, "DUESTREAM_") && !slices.Contains(known, e.Name) {
					t.Errorf("%s: %s has %s, which its command does not know", values, p.name, e.Name)
				}
				if e.Value == "" && e.ValueFrom == nil {
					t.Errorf("%s: %s has the empty variable %s", values, p.name, e.Name)
				}
			}
		}
	}
	for _, component := range []string{"bridge", "gateway", "push"} {
		offered := settingsOf(t, component)
		left := slices.Concat(notOffered[component], passwordFiles)
		for _, name := range documented(t, component) {
			// All components connect by the same templates.
			connects := slices.Contains(documented(t, ""), name) && used["bridge"][name]
			if !used[component][name] && !connects && !slices.Contains(offered, name) && !slices.Contains(left, name) {
				t.Errorf("%s: the command reads %s, and the chart has no value for it", component, name)
			}
		}
		for _, name := range offered {
			if !slices.Contains(documented(t, component), name) {
				t.Errorf("%s.settings may have %s, which the command does not know", component, name)
			}
			if slices.Contains(left, name) {
				t.Errorf("%s.settings may have %s, which is left out on purpose", component, name)
			}
		}
	}
}

// settingsOf returns the variables that the schema allows in the settings of a component.
func settingsOf(t *testing.T, component string) []string {
	t.Helper()
	type settings struct {
		PropertyNames struct{ Enum []string }
	}
	var schema struct {
		Properties map[string]struct {
			Properties struct{ Settings settings }
		}
	}
	text := file(t, "deploy/helm/duestream/values.schema.json")
	if err := json.Unmarshal([]byte(text), &schema); err == nil {
		if names := schema.Properties[component].Properties.Settings.PropertyNames.Enum; len(names) > 0 {
			return names
		}
	}
	t.Fatalf("values.schema.json does not list the settings of %s", component)
	return nil
}

// Each flag of a pod is a flag of its command.
func TestArgumentsAreFlags(t *testing.T) {
	t.Parallel()
	pages := map[string]string{"bridge": "serve", "gateway": "gateway", "push": "push", "test": "health"}
	for _, values := range valuesFiles {
		for _, p := range render(t, values).allPods(t) {
			page := file(t, "docs/reference/command/"+pages[p.labels["app.kubernetes.io/component"]]+".md")
			words := []string{}
			for _, argument := range p.container.Args {
				if !strings.HasPrefix(argument, "--") {
					words = append(words, argument)
					continue
				}
				flag, _, _ := strings.Cut(argument, "=")
				_, text, _ := strings.Cut(page, "duestream "+strings.Join(words, " ")+" [flags]")
				if !strings.Contains(text, "| `"+flag+"` |") {
					t.Errorf("%s: %s has %s, which is no flag of %q", values, p.name, argument, words)
				}
			}
			if !strings.Contains(page, "duestream "+strings.Join(words, " ")+" [flags]") {
				t.Errorf("%s: %s runs %q, which is no command", values, p.name, words)
			}
		}
	}
}

// No secret is in plain text anywhere but in the Secret that the chart creates from redis.url.
func TestSecretsAreReferences(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`URL|PASSWORD`)
	for _, values := range valuesFiles {
		o := render(t, values)
		for _, p := range o.allPods(t) {
			found := false
			for _, e := range p.container.Env {
				if !secret.MatchString(e.Name) {
					continue
				}
				from := e.ValueFrom
				if e.Value != "" || from == nil || from.SecretKeyRef == nil || from.SecretKeyRef.Name == "" ||
					from.SecretKeyRef.Key == "" || from.SecretKeyRef.Optional != nil {
					t.Errorf("%s: %s has %+v", values, p.name, e)
				}
				found = found || e.Name == "DUESTREAM_REDIS_URL"
			}
			if !found {
				t.Errorf("%s: %s has no URL of Redis", values, p.name)
			}
		}
	}

	o := render(t, "everything")
	const url = "redis://bridge:secret-of-the-url@redis:6379"
	created := one(t, o.secrets)
	if created.StringData["DUESTREAM_REDIS_URL"] != url || created.Type != core.SecretTypeOpaque {
		t.Errorf("the Secret is %+v", created)
	}
	if n := strings.Count(o.text, "secret-of-the-url"); n != 1 {
		t.Errorf("the secret occurs %d times", n)
	}
	other := render(t, "everything", "--set", "redis.url=redis://other")
	const name, checksum = "delays-bridge", "checksum/redis"
	if before, after := o.deployments[name].Spec.Template.Annotations[checksum],
		other.deployments[name].Spec.Template.Annotations[checksum]; before == "" || before == after {
		t.Errorf("another URL starts no other pods: %q, %q", before, after)
	}

	// In production each component is a user of its own.
	users := map[string]string{}
	for name, d := range render(t, "production").deployments {
		for _, e := range d.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "DUESTREAM_REDIS_URL" {
				users[e.ValueFrom.SecretKeyRef.Name] = name
			}
		}
	}
	if len(users) != 3 {
		t.Errorf("the Secrets of the URLs are %v", users)
	}
}

// Settings have the values of the file of values, whole numbers included.
func TestSettingsKeepTheirValues(t *testing.T) {
	t.Parallel()
	c := render(t, "everything").deployments["delays-bridge"].Spec.Template.Spec.Containers[0]
	for name, want := range map[string]string{"DUESTREAM_MAX_ATTEMPTS": "1000000", "DUESTREAM_VISIBILITY_TIMEOUT": "1m",
		"DUESTREAM_ANY_SERVER": "false", "GOMEMLIMIT": "200MiB", "DUESTREAM_PREFIX": "shop"} {
		if got := variable(c, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
