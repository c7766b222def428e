package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	root  = "../../.."
	chart = "../duestream"

	// kubeVersion is the oldest version of Kubernetes that Chart.yaml allows.
	kubeVersion = "1.30.0"
	namespace   = "queues"
)

// valuesFiles are the files of values in the folder ci of the chart, by their names.
var valuesFiles = []string{"minimal", "everything", "production"}

func valuesFile(name string) string { return filepath.Join(chart, "ci", name+"-values.yaml") }

// helm runs helm, and returns its standard output, or an error with its standard error.
func helm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	program, err := helmProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	// A helm of this machine may have plugins and repositories, which must not count.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s%s", arguments[0], err, out.String(), problems.String())
	}
	return out.String(), nil
}

// helmProgram builds helm at the version of go.mod, and returns the path of the program.
var helmProgram = sync.OnceValues(func() (string, error) {
	var out, problems bytes.Buffer // go lists its downloads on stderr
	cmd := exec.Command("go", "tool", "-n", "helm")
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go tool -n helm: %w\n%s", err, problems.String())
	}
	return strings.TrimSpace(out.String()), nil
})

// template renders the chart with a file of values, and further arguments of helm template.
func template(t *testing.T, values string, more ...string) (string, error) {
	t.Helper()
	arguments := []string{"template", "shop", chart, "--namespace", namespace, "--kube-version", kubeVersion,
		"--values", valuesFile(values)}
	return helm(t, append(arguments, more...)...)
}

// objects are the rendered objects of the chart, by kind and by name.
type objects struct {
	text            string
	deployments     map[string]*apps.Deployment
	pods            map[string]*core.Pod
	services        map[string]*core.Service
	secrets         map[string]*core.Secret
	configMaps      map[string]*core.ConfigMap
	serviceAccounts map[string]*core.ServiceAccount
	budgets         map[string]*policy.PodDisruptionBudget
	networkPolicies map[string]*networking.NetworkPolicy
	monitors        map[string]*monitoring.ServiceMonitor
	rules           map[string]*monitoring.PrometheusRule
	scaledObjects   map[string]*scaledObject
	logins          map[string]*triggerAuthentication
	all             map[string]meta.Object // by kind and name
}

// render renders the chart, and decodes every object strictly: a field that its type does not have, or that occurs
// twice, is an error.
func render(t *testing.T, values string, more ...string) *objects {
	t.Helper()
	text, err := template(t, values, more...)
	if err != nil {
		t.Fatal(err)
	}
	o := &objects{text: text, all: map[string]meta.Object{}}
	reader := utilyaml.NewYAMLReader(newReader(text))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return o
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind meta.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case " ": // comments alone
		case "apps/v1 Deployment":
			decode(t, o, &o.deployments, document)
		case "v1 Pod":
			decode(t, o, &o.pods, document)
		case "v1 Service":
			decode(t, o, &o.services, document)
		case "v1 Secret":
			decode(t, o, &o.secrets, document)
		case "v1 ConfigMap":
			decode(t, o, &o.configMaps, document)
		case "v1 ServiceAccount":
			decode(t, o, &o.serviceAccounts, document)
		case "policy/v1 PodDisruptionBudget":
			decode(t, o, &o.budgets, document)
		case "networking.k8s.io/v1 NetworkPolicy":
			decode(t, o, &o.networkPolicies, document)
		case "monitoring.coreos.com/v1 ServiceMonitor":
			decode(t, o, &o.monitors, document)
		case "monitoring.coreos.com/v1 PrometheusRule":
			decode(t, o, &o.rules, document)
		case "keda.sh/v1alpha1 ScaledObject":
			decode(t, o, &o.scaledObjects, document)
		case "keda.sh/v1alpha1 TriggerAuthentication":
			decode(t, o, &o.logins, document)
		default:
			t.Errorf("the chart has an unknown kind, %s %s", kind.APIVersion, kind.Kind)
		}
	}
}

// decode adds the object of a document to the objects of its kind.
func decode[T any, P interface {
	*T
	meta.Object
}](t *testing.T, o *objects, to *map[string]*T, document []byte) {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	var m meta.Object = P(object)
	key := fmt.Sprintf("%T %s", object, m.GetName())
	if o.all[key] != nil {
		t.Errorf("there are two of %s", key)
	}
	o.all[key] = m
	if *to == nil {
		*to = map[string]*T{}
	}
	(*to)[m.GetName()] = object
}

// one returns the only element of a map.
func one[T any](t *testing.T, of map[string]*T) *T {
	t.Helper()
	for _, object := range of {
		if len(of) == 1 {
			return object
		}
	}
	t.Fatalf("%d objects of the type %T, instead of one", len(of), *new(T))
	return nil
}

// file returns the content of a file of this repository.
func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
