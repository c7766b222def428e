package check

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	networking "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// The chart has the alert rules and the board of deploy, byte for byte, and renders them without a change.
func TestRulesAndBoardAreThoseOfDeploy(t *testing.T) {
	t.Parallel()
	rules, board := file(t, "deploy/prometheus/rules.yml"), file(t, "deploy/grafana/duestream.json")
	if rules != file(t, "deploy/helm/duestream/files/rules.yml") ||
		board != file(t, "deploy/helm/duestream/files/board.json") {
		t.Fatal("the files of the chart are not those of deploy: run `make helm-files`")
	}
	o := render(t, "everything")
	var want, got struct{ Groups any }
	rendered, err := yaml.Marshal(one(t, o.rules).Spec)
	if err != nil {
		t.Fatal(err)
	}
	for text, to := range map[string]any{rules: &want, string(rendered): &got} {
		if err := yaml.Unmarshal([]byte(text), to); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(want, got) || !strings.Contains(string(rendered), "{{ $labels.queue }}") {
		t.Errorf("the rules are rendered as\n%s", rendered)
	}
	if text := one(t, o.configMaps).Data["delays.json"]; text != strings.TrimSuffix(board, "\n") {
		t.Error("the board is rendered otherwise")
	}
}

// Prometheus reads the metrics of all pods, also of those that are not ready. All figures of an installation have one
// job, which no other installation has.
func TestServiceMonitor(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"everything", "production"} {
		o := render(t, values)
		monitor := one(t, o.monitors)
		var services []string
		for name, s := range o.services {
			if !selects(monitor.Spec.Selector.MatchLabels, s.Labels) {
				continue
			}
			services = append(services, name)
			if !s.Spec.PublishNotReadyAddresses || s.Spec.ClusterIP != "None" ||
				s.Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port {
				t.Errorf("%s: the Service of the metrics is %+v", values, s.Spec)
			}
			for name, d := range o.deployments {
				if !selects(s.Spec.Selector, d.Spec.Template.Labels) {
					t.Errorf("%s: the metrics of %s are not read", values, name)
				}
			}
		}
		if len(services) != 1 || !strings.HasSuffix(services[0], "-metrics") {
			t.Errorf("%s: the ServiceMonitor selects %q", values, services)
		}
		job := monitor.Spec.Endpoints[0].RelabelConfigs[0]
		if job.TargetLabel != "job" || *job.Replacement != namespace+"/"+monitor.Name {
			t.Errorf("%s: the job is %+v", values, job)
		}
	}
}

// By its NetworkPolicy, a pod is reached and connects only where it must.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	ports := func(all []networking.NetworkPolicyPort) (texts []string) {
		for _, p := range all {
			texts = append(texts, string(*p.Protocol)+" "+p.Port.String())
		}
		return texts
	}
	ingress := map[string][]string{
		"bridge": {"TCP metrics"}, "gateway": {"TCP metrics", "TCP http"}, "push": {"TCP metrics"},
	}
	egress := []string{"UDP 53", "TCP 53", "TCP 6379"}
	for name, n := range render(t, "production").networkPolicies {
		component := name[strings.LastIndex(name, "-")+1:]
		var in, out []string
		for _, rule := range n.Spec.Ingress {
			in = append(in, ports(rule.Ports)...)
			if len(rule.From) == 0 {
				t.Errorf("%s is open to all at %v", name, ports(rule.Ports))
			}
		}
		for _, rule := range n.Spec.Egress {
			out = append(out, ports(rule.Ports)...)
		}
		want := egress
		if component == "push" {
			want = append(slices.Clone(egress), "TCP 443")
		}
		if !slices.Equal(in, ingress[component]) || !slices.Equal(out, want) || len(n.Spec.PolicyTypes) != 2 {
			t.Errorf("%s allows %v in and %v out", name, in, out)
		}
	}
	closed := render(t, "production",
		"--set-json", "networkPolicy.metricsFrom=[]", "--set-json", "networkPolicy.gatewayFrom=[]")
	for name, n := range closed.networkPolicies {
		if len(n.Spec.Ingress) != 0 {
			t.Errorf("%s allows %+v, without peers", name, n.Spec.Ingress)
		}
	}
}
