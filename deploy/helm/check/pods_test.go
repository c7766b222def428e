package check

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// pod is a pod of a Deployment, or of helm test.
type pod struct {
	name      string
	labels    map[string]string
	spec      core.PodSpec
	container core.Container
}

// pods returns all pods of the objects.
func (o *objects) allPods(t *testing.T) []pod {
	t.Helper()
	var all []pod
	for name, d := range o.deployments {
		all = append(all, pod{name: name, labels: d.Spec.Template.Labels, spec: d.Spec.Template.Spec})
	}
	for name, p := range o.pods {
		all = append(all, pod{name: name, labels: p.Labels, spec: p.Spec})
	}
	for i := range all {
		if len(all[i].spec.Containers) != 1 || len(all[i].spec.InitContainers) != 0 {
			t.Fatalf("%s has %d containers", all[i].name, len(all[i].spec.Containers))
		}
		all[i].container = all[i].spec.Containers[0]
	}
	return all
}

// Every pod fulfils the restricted Pod Security Standard, writes to nothing but its health file, and has no rights at
// the API server of Kubernetes.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	for _, values := range valuesFiles {
		o := render(t, values)
		for _, p := range o.allPods(t) {
			name := values + ": " + p.name
			if p.spec.AutomountServiceAccountToken == nil || *p.spec.AutomountServiceAccountToken {
				t.Errorf("%s gets a token of its account", name)
			}
			if p.spec.EnableServiceLinks == nil || *p.spec.EnableServiceLinks {
				t.Errorf("%s gets variables of Services", name)
			}
			s := p.spec.SecurityContext
			if s == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *s.RunAsGroup != 65532 || *s.FSGroup != 65532 ||
				s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s has the security context %+v", name, s)
			}
			c := p.container.SecurityContext
			if c == nil || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.Privileged != nil ||
				!slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}) || len(c.Capabilities.Add) != 0 {
				t.Errorf("%s has a container with the security context %+v", name, c)
			}
			if p.spec.HostNetwork || p.spec.HostPID || p.spec.HostIPC {
				t.Errorf("%s shares a namespace of its node", name)
			}
			if p.container.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s has no memory limit", name)
			}
			if account := o.serviceAccounts[p.spec.ServiceAccountName]; account == nil && values != "production" {
				t.Errorf("%s has the account %q, which the chart does not create", name, p.spec.ServiceAccountName)
			} else if account != nil && (account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken) {
				t.Errorf("the account of %s gives tokens", name)
			}
		}
	}
	if !strings.Contains(file(t, "Dockerfile"), "USER 65532:65532") {
		t.Error("the image runs as another user")
	}
}

// Mounts and volumes belong together. Secrets are readable by their group alone, and can be renewed: no file is mounted
// by subPath.
func TestMounts(t *testing.T) {
	t.Parallel()
	for _, values := range valuesFiles {
		for _, p := range render(t, values).allPods(t) {
			name := values + ": " + p.name
			volumes := map[string]core.Volume{}
			for _, v := range p.spec.Volumes {
				volumes[v.Name] = v
			}
			if len(volumes) != len(p.container.VolumeMounts) {
				t.Errorf("%s has %d volumes and %d mounts", name, len(volumes), len(p.container.VolumeMounts))
			}
			directories := map[string]bool{}
			for _, m := range p.container.VolumeMounts {
				directories[m.MountPath] = true
				switch v, found := volumes[m.Name]; {
				case !found || m.SubPath != "":
					t.Errorf("%s mounts %+v", name, m)
				case v.Secret != nil:
					if *v.Secret.DefaultMode != 0o440 || !m.ReadOnly || !strings.HasPrefix(m.MountPath, "/etc/duestream/") {
						t.Errorf("%s mounts the Secret %+v at %+v", name, v.Secret, m)
					}
				case v.EmptyDir == nil || v.EmptyDir.Medium != core.StorageMediumMemory || v.EmptyDir.SizeLimit == nil:
					t.Errorf("%s has the volume %+v", name, v)
				}
			}
			// Every file that a variable or an argument names is in a mounted directory.
			files := append([]string{}, p.container.Args...)
			for _, e := range p.container.Env {
				files = append(files, "="+e.Value)
			}
			for _, file := range files {
				if _, file, _ = strings.Cut(file, "="); strings.HasPrefix(file, "/") && !directories[path.Dir(file)] {
					t.Errorf("%s names the file %s, which is in no volume", name, file)
				}
			}
		}
	}
}

// Probes ask the process itself, at a port that it listens on. The liveness probe never depends on Redis.
func TestProbes(t *testing.T) {
	t.Parallel()
	for _, values := range valuesFiles {
		for name, d := range render(t, values).deployments {
			c := d.Spec.Template.Spec.Containers[0]
			ready, alive := c.ReadinessProbe, c.LivenessProbe
			if ready == nil || ready.HTTPGet == nil || ready.HTTPGet.Path != "/readyz" ||
				ready.HTTPGet.Port.StrVal != "metrics" {
				t.Errorf("%s: %s has the readiness probe %+v", values, name, ready)
			}
			if d.Labels["app.kubernetes.io/component"] == "bridge" {
				if command := strings.Join(alive.Exec.Command, `", "`); !strings.Contains(file(t, "Dockerfile"),
					`CMD ["`+command+`"]`) || variable(c, "DUESTREAM_HEALTH_FILE") == "" {
					t.Errorf("%s: %s has the liveness probe %q, unlike the image", values, name, command)
				}
			} else if alive.HTTPGet == nil || alive.HTTPGet.Path != "/healthz" || alive.HTTPGet.Port.StrVal != "metrics" {
				t.Errorf("%s: %s has the liveness probe %+v", values, name, alive)
			}
			// The limit for a hung loop is 30 s, so a process must not be restarted much earlier for a slow answer.
			if time := alive.PeriodSeconds * alive.FailureThreshold; time < 30 {
				t.Errorf("%s: %s is restarted after %d s", values, name, time)
			}
			listens := map[string]string{"metrics": variable(c, "DUESTREAM_METRICS_ADDR"),
				"http": variable(c, "DUESTREAM_HTTP_ADDR"), "admin": variable(c, "DUESTREAM_ADMIN_ADDR")}
			for _, port := range c.Ports {
				if listens[port.Name] != fmt.Sprint(":", port.ContainerPort) {
					t.Errorf("%s: %s has the port %+v, and listens on %v", values, name, port, listens)
				}
				delete(listens, port.Name)
			}
			for port, address := range listens {
				if address != "" {
					t.Errorf("%s: %s listens on %s, and has no port %s", values, name, address, port)
				}
			}
		}
	}
}

// Kubernetes waits longer for a pod than its process takes for a clean stop.
func TestGracePeriod(t *testing.T) {
	t.Parallel()
	sets := [][]string{nil, {"--set", "bridge.shutdownTimeoutSeconds=600,gateway.shutdownTimeoutSeconds=600," +
		"push.shutdownTimeoutSeconds=600,gateway.preStopSleepSeconds=60,push.terminationGracePeriodSeconds=null"}}
	for _, values := range valuesFiles {
		for _, set := range sets {
			for name, d := range render(t, values, set...).deployments {
				c := d.Spec.Template.Spec.Containers[0]
				text := variable(c, "DUESTREAM_SHUTDOWN_TIMEOUT")
				for _, argument := range c.Args {
					if value, found := strings.CutPrefix(argument, "--shutdown-timeout="); found {
						text = value
					}
				}
				stop, err := time.ParseDuration(text)
				if err != nil {
					t.Fatalf("%s: %s has the shutdown timeout %q: %v", values, name, text, err)
				}
				if c.Lifecycle != nil {
					stop += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
				}
				grace := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
				if grace < stop+20*time.Second {
					t.Errorf("%s: %s is killed after %s, and may take %s", values, name, grace, stop)
				}
			}
		}
	}
}

// Every selector selects the pods of its component, and no others.
func TestSelectors(t *testing.T) {
	t.Parallel()
	for _, values := range valuesFiles {
		o := render(t, values)
		selectors := map[string]map[string]string{}
		for name, d := range o.deployments {
			selectors[name+" (Deployment)"] = d.Spec.Selector.MatchLabels
			checkSpread(t, values, name, d)
		}
		for name, b := range o.budgets {
			selectors[name+" (PodDisruptionBudget)"] = b.Spec.Selector.MatchLabels
		}
		for name, n := range o.networkPolicies {
			selectors[name+" (NetworkPolicy)"] = n.Spec.PodSelector.MatchLabels
		}
		for name, s := range o.services {
			if !strings.HasSuffix(name, "-metrics") {
				selectors[name+" (Service)"] = s.Spec.Selector
			}
		}
		for of, selector := range selectors {
			component := selector["app.kubernetes.io/component"]
			if !strings.Contains(of, "-"+component) || component == "" {
				t.Errorf("%s: %s selects %v", values, of, selector)
			}
			var selected []string
			for _, p := range o.allPods(t) {
				if selects(selector, p.labels) {
					selected = append(selected, p.name)
				}
			}
			if len(selected) != 1 || !strings.HasSuffix(selected[0], "-"+component) {
				t.Errorf("%s: %s selects the pods of %q", values, of, selected)
			}
		}
		// Each port of a Service is a port of the pods.
		for name, s := range o.services {
			for _, p := range o.allPods(t) {
				for _, port := range s.Spec.Ports {
					leadsTo := func(c core.ContainerPort) bool { return c.Name == port.TargetPort.StrVal }
					if selects(s.Spec.Selector, p.labels) && o.pods[p.name] == nil &&
						!slices.ContainsFunc(p.container.Ports, leadsTo) {
						t.Errorf("%s: %s leads to the port %s, which %s does not have", values, name, port.TargetPort.StrVal, p.name)
					}
				}
			}
		}
	}
}

// checkSpread checks that the pods of a Deployment spread among themselves.
func checkSpread(t *testing.T, values, name string, d *apps.Deployment) {
	t.Helper()
	spread := d.Spec.Template.Spec.TopologySpreadConstraints
	for _, s := range spread {
		if s.LabelSelector == nil || !selects(s.LabelSelector.MatchLabels, d.Spec.Template.Labels) ||
			s.LabelSelector.MatchLabels["app.kubernetes.io/component"] == "" {
			t.Errorf("%s: %s spreads by %+v", values, name, s)
		}
	}
	if len(spread) != 2 {
		t.Errorf("%s: %s has %d constraints", values, name, len(spread))
	}
}

// An upgrade of the chart alone restarts no pod. Gateways and push runners can stay behind at an upgrade of the image.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	o := render(t, "production", "--set", "image.tag=v2,image.digest=,gateway.imageTag=v1,push.imageTag=v1")
	for name, d := range o.deployments {
		for key, value := range d.Spec.Template.Labels {
			if strings.HasPrefix(key, "helm.sh/") || key == "app.kubernetes.io/version" {
				t.Errorf("the pods of %s have the label %s=%s", name, key, value)
			}
		}
		want := "registry.example.com/duestream:v1"
		if d.Labels["app.kubernetes.io/component"] == "bridge" {
			want = "registry.example.com/duestream:v2"
		}
		if image := d.Spec.Template.Spec.Containers[0].Image; image != want {
			t.Errorf("%s has the image %s, want %s", name, image, want)
		}
	}
	for name, d := range render(t, "production").deployments {
		if image := d.Spec.Template.Spec.Containers[0].Image; !strings.Contains(image, "/duestream@sha256:") {
			t.Errorf("%s has the image %s, without the digest", name, image)
		}
	}
}

// selects reports whether a selector selects a pod. An empty selector selects every pod, which is never meant here.
func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return len(selector) > 0
}

// variable returns the value of an environment variable of a container; "" if it has none.
func variable(c core.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
