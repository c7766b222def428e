package check

import (
	"bufio"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func newReader(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }

// helm lint finds no fault in the chart, neither alone nor with each file of values.
func TestLintFindsNoFault(t *testing.T) {
	t.Parallel()
	if _, err := helm(t, "lint", chart, "--strict", "--kube-version", kubeVersion); err != nil {
		t.Error(err)
	}
	for _, name := range valuesFiles {
		_, err := helm(t, "lint", chart, "--strict", "--kube-version", kubeVersion, "--values", valuesFile(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every object has the namespace of the release, and names and labels that Kubernetes takes. render checks the fields.
func TestObjectsHaveValidNames(t *testing.T) {
	t.Parallel()
	for _, values := range valuesFiles {
		for key, object := range render(t, values).all {
			if object.GetNamespace() != namespace {
				t.Errorf("%s: %s is in the namespace %q", values, key, object.GetNamespace())
			}
			for _, problem := range validation.IsDNS1123Label(object.GetName()) {
				t.Errorf("%s: %s: %s", values, key, problem)
			}
			labels := object.GetLabels()
			if labels["app.kubernetes.io/instance"] != "shop" || labels["helm.sh/chart"] == "" {
				t.Errorf("%s: %s has the labels %v", values, key, labels)
			}
			for name, value := range labels {
				for _, problem := range append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...) {
					t.Errorf("%s: %s: label %s=%q: %s", values, key, name, value, problem)
				}
			}
		}
	}
	long := render(t, "everything", "--set", "fullnameOverride="+strings.Repeat("n", 49))
	for key, object := range long.all {
		for _, problem := range validation.IsDNS1123Label(object.GetName()) {
			t.Errorf("%s: %s", key, problem)
		}
	}
}

// The sets of values install the objects that their comments promise.
func TestValuesSelectObjects(t *testing.T) {
	t.Parallel()
	minimal := render(t, "minimal")
	if len(minimal.all) != 4 { // with the account, and the pod of helm test
		t.Errorf("minimal has %v", slices.Sorted(maps.Keys(minimal.all)))
	}
	if d := one(t, minimal.deployments); d.Name != "shop-duestream-bridge" || *d.Spec.Replicas != 2 {
		t.Errorf("minimal has %s with %d pods", d.Name, *d.Spec.Replicas)
	}
	everything := render(t, "everything")
	if everything.deployments["delays-gateway"].Spec.Replicas != nil {
		t.Error("replicas: null does not leave the number of pods to somebody else")
	}
	for _, o := range []*objects{everything, render(t, "production")} {
		if len(o.deployments) != 3 || len(o.budgets) != 3 || len(o.networkPolicies) != 3 || len(o.monitors) != 1 ||
			len(o.rules) != 1 || len(o.configMaps) != 1 || len(o.services) != 3 {
			t.Errorf("it has %v", slices.Sorted(maps.Keys(o.all)))
		}
	}
}

// Values that cannot be right are refused, with an error that names the value.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ set, want string }{
		{"image.repository=", "image.repository is required"},
		{"redis.existingSecret=", "redis.existingSecret is required"},
		{"redis.url=redis://redis:6379", "redis.url and redis.existingSecret are both given"},
		{"redis.existingSecret=,redis.url=http://redis", "/redis/url"},
		{"bridge.enabled=false", "nothing to install"},
		{"bridge.replica=3", "'replica' not allowed"},
		{"bridge.settings.DUESTREAM_MAX_ATEMPTS=3", "DUESTREAM_MAX_ATEMPTS"},
		{"bridge.settings.DUESTREAM_HTTP_ADDR=:80", "DUESTREAM_HTTP_ADDR"},
		{"bridge.settings.DUESTREAM_RETRY_MIN=", "/bridge/settings/DUESTREAM_RETRY_MIN"},
		{"bridge.extraEnv[0].name=DUESTREAM_REDIS_URL", "/bridge/extraEnv/0/name"},
		{"bridge.terminationGracePeriodSeconds=9", "a clean stop may take 10 s"},
		{"gateway.enabled=true,gateway.terminationGracePeriodSeconds=14", "a clean stop may take 15 s"},
		{"gateway.enabled=true,gateway.tls.clientCA=true", "gateway.tls.clientCA needs gateway.tls.existingSecret"},
		{"gateway.enabled=true,gateway.admin.enabled=true", "gateway.admin.existingSecret is required"},
		{"push.enabled=true,push.tls.ca=true", "need push.tls.existingSecret"},
		{"commonLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name"},
		{"log.level=verbose", "/log/level"},
	} {
		if _, err := template(t, "minimal", "--set", c.set); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--set %s: %v, want an error with %q", c.set, err, c.want)
		}
	}
	if _, err := template(t, "minimal", "--kube-version", "1.29.9"); err == nil {
		t.Error("it renders for Kubernetes 1.29, which has no sleep action")
	}
}

// values.yaml has each value of the schema, and the schema has each value of values.yaml, because helm lint refuses
// others. Each value that occurs once has a comment.
func TestEveryValueIsDocumented(t *testing.T) {
	t.Parallel()
	text := file(t, "deploy/helm/duestream/values.yaml")
	var values, schema map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(file(t, "deploy/helm/duestream/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, values, schema map[string]any)
	compare = func(path string, values, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		for name, property := range properties {
			value, found := values[name]
			if !found && path+name != "global" {
				t.Errorf("the schema has %s%s, values.yaml has not", path, name)
			}
			if below, ok := value.(map[string]any); ok {
				compare(path+name+".", below, property.(map[string]any))
			}
		}
	}
	compare("", values, schema)

	lines := strings.Split(text, "\n")
	key := regexp.MustCompile(`^ *([a-zA-Z]+):`)
	commented, seen := map[string]bool{}, map[string]bool{}
	for i, line := range lines {
		if m := key.FindStringSubmatch(line); m != nil {
			seen[m[1]] = true
			before := strings.TrimSpace(lines[max(i-1, 0)])
			// A group of values needs no comment. In a section, the comment of the section is enough.
			if strings.HasPrefix(before, "#") || strings.HasSuffix(line, ":") || strings.HasSuffix(before, ":") {
				commented[m[1]] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !commented[name] && !slices.Contains(wellKnown, name) {
			t.Errorf("values.yaml: %s has no comment", name)
		}
	}
}

// wellKnown are keys of values.yaml whose meaning is that of Kubernetes.
var wellKnown = []string{"affinity", "tolerations", "priorityClassName", "annotations", "allowPrivilegeEscalation",
	"readOnlyRootFilesystem", "drop", "runAsNonRoot", "runAsUser", "runAsGroup", "fsGroupChangePolicy", "limits",
	"rollingUpdate", "topologyKey", "whenUnsatisfiable", "podAnnotations", "commonAnnotations", "scrapeTimeout"}
