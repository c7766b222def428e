package check

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// scaledObject and triggerAuthentication hold the fields of KEDA that the chart uses. The module of KEDA would bring
// hundreds of others.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef  struct{ Name string } `json:"scaleTargetRef"`
		MinReplicaCount int                   `json:"minReplicaCount"`
		MaxReplicaCount int                   `json:"maxReplicaCount"`
		Fallback        *struct {
			FailureThreshold int `json:"failureThreshold"`
			Replicas         int `json:"replicas"`
		} `json:"fallback"`
		Advanced any           `json:"advanced"`
		Triggers []kedaTrigger `json:"triggers"`
	} `json:"spec"`
}

type kedaTrigger struct {
	Type              string                `json:"type"`
	Metadata          map[string]string     `json:"metadata"`
	AuthenticationRef struct{ Name string } `json:"authenticationRef"`
}

type triggerAuthentication struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		SecretTargetRef []struct{ Parameter, Name, Key string } `json:"secretTargetRef"`
	} `json:"spec"`
}

// The triggers of the chart are those of docs/guides/autoscaling.md, which a test of the gateway asks: the same path,
// place and kind of login. KEDA asks from its own namespace, so the host names that of the release.
func TestKedaAsksAsTheGuideDoes(t *testing.T) {
	t.Parallel()
	text := file(t, "docs/guides/autoscaling.md")
	block := regexp.MustCompile("(?s)```yaml\n.*?\n---\n(.*?)```").FindStringSubmatch(text)
	if block == nil {
		t.Fatal("the guide has no ScaledObject")
	}
	var guide scaledObject
	if err := yaml.UnmarshalStrict([]byte(block[1]), &guide); err != nil {
		t.Fatal(err)
	}
	o := render(t, "everything")
	s, login := o.scaledObjects["delays-mailer"], one(t, o.logins)
	if s == nil || len(s.Spec.Triggers) != 2 || len(guide.Spec.Triggers) != 1 {
		t.Fatalf("it has %+v, and the guide has %+v", s, guide)
	}
	want, got := guide.Spec.Triggers[0], s.Spec.Triggers[0]
	for _, name := range []string{"valueLocation", "targetValue", "authMode"} {
		if got.Metadata[name] == "" || got.Metadata[name] != want.Metadata[name] {
			t.Errorf("%s is %q, want %q", name, got.Metadata[name], want.Metadata[name])
		}
	}
	asks := func(trigger kedaTrigger) *url.URL {
		u, err := url.Parse(trigger.Metadata["url"])
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if got, want := asks(got), asks(want); got.RequestURI() != want.RequestURI() || got.Scheme != "http" ||
		got.Host != "delays-gateway."+namespace+".svc:80" {
		t.Errorf("it asks %s, want the path of %s", got, want)
	}
	query := asks(s.Spec.Triggers[1]).Query()
	if query.Get("group") != "mail & more" || query.Get("within_ms") != "60000" {
		t.Errorf("the second trigger asks with %v", query)
	}
	ref := login.Spec.SecretTargetRef[0]
	if got.Type != want.Type || got.AuthenticationRef.Name != login.Name || ref.Parameter != "token" ||
		ref.Name != "keda" || ref.Key != "token" {
		t.Errorf("it logs in with %+v and %+v", got, login.Spec)
	}
	if s.Spec.ScaleTargetRef.Name != "mailer" || s.Spec.MinReplicaCount != 0 || s.Spec.MaxReplicaCount != 50 ||
		s.Spec.Fallback.Replicas != 10 {
		t.Errorf("it scales as %+v", s.Spec)
	}
	// A NetworkPolicy lets KEDA in, which has a namespace of its own.
	open := strings.Contains(o.networkPolicies["delays-gateway"].String(), "kubernetes.io/metadata.name: keda,")
	if closed := render(t, "production").text; !open || strings.Contains(closed, "keda") {
		t.Errorf("KEDA may ask: %t; objects for KEDA that nobody asked for: %t", open, strings.Contains(closed, "keda"))
	}
}

// Values with which KEDA could not ask, or would argue with helm upgrade, are refused.
func TestKedaRefusals(t *testing.T) {
	t.Parallel()
	const one = `keda.scaledObjects=[{"name":"n","deployment":"delays-push","minReplicas":1,"maxReplicas":2,` +
		`"queues":[{"queue":"q","group":"g","withinSeconds":1,"messagesPerPod":1}]}]`
	for _, c := range []struct{ flag, set, want string }{
		{"--set", "keda.existingSecret=", "keda.existingSecret is required"},
		{"--set", "gateway.enabled=false", "keda.enabled needs gateway.enabled"},
		{"--set", "gateway.tls.existingSecret=s,gateway.tls.clientCA=true", "no certificate"},
		{"--set-json", one, "push.replicas to null"},
		{"--set-json", strings.Replace(one, `"withinSeconds":1,`, "", 1), "withinSeconds"},
		{"--set-json", strings.Replace(one, `"queue":"q"`, `"queue":"a/b"`, 1), "/keda/scaledObjects/0/queues/0/queue"},
		{"--set-json", strings.Replace(one, `"name":"n"`, `"name":"`+strings.Repeat("n", 60)+`"`, 1), "longer than 63"},
	} {
		if _, err := template(t, "everything", c.flag, c.set); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want an error with %q", c.flag, c.set, err, c.want)
		}
	}
	render(t, "everything", "--set-json", one, "--set-json", "push.replicas=null")
}
