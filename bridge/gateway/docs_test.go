package gateway

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v2"

	"github.com/duestream/duestream/bridge/access"
)

// The commands in docs/reference/http.md print what it shows; … stands for any text.
func TestTheDocumentedCommandsPrintWhatIsDocumented(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("the examples need curl: ", err)
	}
	text, err := os.ReadFile("../../docs/reference/http.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	ran := 0
	for i, part := range strings.Split(string(text), "```") {
		block, isConsole := strings.CutPrefix(part, "console\n")
		if i%2 == 0 || !isConsole { // the parts with an even index are text between the blocks
			continue
		}
		for _, step := range strings.Split(block, "$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
			cmd.Env = append(os.Environ(), "GATEWAY="+r.base, "TOKEN="+r.token)
			got, err := cmd.CombinedOutput()
			pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", `[^\n]*`) + "$"
			if err != nil || !regexp.MustCompile(pattern).Match(got) {
				t.Errorf("$ %s\nprints (error %v)\n%s\nand not\n%s", command, err, got, want)
			}
			ran++
		}
	}
	if ran < 8 { // else the page is no longer parsed right
		t.Errorf("%d commands were found", ran)
	}
}

// docs/reference/http.md lists each type of a problem.
func TestEveryProblemIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/http.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	types := regexp.MustCompile(`= "urn:duestream:problem:([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	for _, m := range types {
		if !regexp.MustCompile("(?m)^\\| [0-9, ]+ \\|[^|]*`" + m[1] + "`").Match(text) {
			t.Errorf("problem %s has no row", m[1])
		}
	}
	if len(types) < 15 { // else problem.go is no longer parsed right
		t.Errorf("%d types were found", len(types))
	}
}

// scaledObject holds the fields of a ScaledObject and of a TriggerAuthentication of KEDA that the guide uses.
type scaledObject struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		SecretTargetRef []struct{ Parameter, Name, Key string } `yaml:"secretTargetRef"`

		ScaleTargetRef  struct{ Name string } `yaml:"scaleTargetRef"`
		MinReplicaCount int                   `yaml:"minReplicaCount"`
		MaxReplicaCount int                   `yaml:"maxReplicaCount"`
		Fallback        struct {
			FailureThreshold int `yaml:"failureThreshold"`
			Replicas         int
		}
		Advanced any
		Triggers []struct {
			Type              string
			Metadata          map[string]string
			AuthenticationRef struct{ Name string } `yaml:"authenticationRef"`
		}
	}
}

// The example of KEDA in docs/guides/autoscaling.md is YAML with the fields of KEDA. Its trigger asks for a URL that
// the gateway answers, with a token as the guide makes it, and reads a number at the place that the trigger names.
func TestTheTriggerOfTheGuideReadsTheForecast(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/guides/autoscaling.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("the guide has no YAML")
	}
	objects := map[string]scaledObject{}
	for _, document := range strings.Split(string(block[1]), "\n---\n") {
		var o scaledObject
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil || o.APIVersion != "keda.sh/v1alpha1" {
			t.Fatalf("%v\n%s", err, document)
		}
		objects[o.Kind] = o
	}
	login, scaled := objects["TriggerAuthentication"], objects["ScaledObject"].Spec
	if len(scaled.Triggers) != 1 || len(login.Spec.SecretTargetRef) != 1 {
		t.Fatalf("the objects are %+v", objects)
	}
	trigger := scaled.Triggers[0]
	if trigger.Type != "metrics-api" || trigger.Metadata["authMode"] != "bearer" ||
		login.Spec.SecretTargetRef[0].Parameter != "token" || trigger.AuthenticationRef.Name != login.Metadata.Name {
		t.Errorf("the trigger is %+v, with %+v", trigger, login)
	}
	if n, err := strconv.ParseFloat(trigger.Metadata["targetValue"], 64); err != nil || n <= 0 {
		t.Errorf("targetValue: %v, %v", n, err)
	}
	asked, err := url.Parse(trigger.Metadata["url"])
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.do("POST", "/v1/queues/offers/messages?in_ms=40000", "x").want(http.StatusCreated)
	r.do("POST", "/v1/queues/offers/messages?in_ms=60000000", "x").want(http.StatusCreated)
	token := r.allow(access.Token{Name: "keda", Verbs: []access.Verb{access.Inspect}, Queues: []string{"offers"}})
	var figures map[string]any
	r.do("GET", asked.RequestURI(), "", "Authorization: Bearer "+token).want(http.StatusOK).read(&figures)
	place := trigger.Metadata["valueLocation"]
	if n, isNumber := figures[place].(float64); !isNumber || n != 1 {
		t.Errorf("%s is %v in %v", place, figures[place], figures)
	}
}
