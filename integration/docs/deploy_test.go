package docs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v2"
)

// object holds the tested fields of a Kubernetes manifest.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				SecurityContext struct {
					User int `yaml:"runAsUser"`
				} `yaml:"securityContext"`
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Args    []string
					EnvFrom []struct {
						SecretRef struct{ Name string } `yaml:"secretRef"`
					} `yaml:"envFrom"`
					VolumeMounts []struct {
						Path string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
					LivenessProbe struct {
						Exec struct{ Command []string }
					} `yaml:"livenessProbe"`
					ReadinessProbe struct {
						HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
					} `yaml:"readinessProbe"`
					Env   []struct{ Name, Value string }
					Ports []struct {
						Name   string
						Number int `yaml:"containerPort"`
					}
				}
			}
		}
	}
	StringData map[string]string `yaml:"stringData"`
}

// The manifest parses, its parts refer to each other, and it runs the image as the Dockerfile builds it.
func TestKubernetesManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		objects[o.Kind] = o
	}
	deployment, secret, budget := objects["Deployment"], objects["Secret"], objects["PodDisruptionBudget"]
	pod := deployment.Spec.Template
	if len(objects) != 3 || len(pod.Spec.Containers) != 1 || len(pod.Spec.Containers[0].EnvFrom) != 1 {
		t.Fatalf("%+v", objects)
	}
	for name, selector := range map[string]map[string]string{"Deployment": deployment.Spec.Selector.MatchLabels,
		"PodDisruptionBudget": budget.Spec.Selector.MatchLabels} {
		if len(selector) == 0 {
			t.Errorf("%s selects everything", name)
		}
		for key, value := range selector {
			if pod.Metadata.Labels[key] != value {
				t.Errorf("%s selects %s=%s, the pods have %v", name, key, value, pod.Metadata.Labels)
			}
		}
	}
	c := pod.Spec.Containers[0]
	if c.EnvFrom[0].SecretRef.Name != secret.Metadata.Name || secret.StringData["DUESTREAM_REDIS_URL"] == "" {
		t.Errorf("settings from %q, the secret is %q: %v", c.EnvFrom[0].SecretRef.Name, secret.Metadata.Name, secret.StringData)
	}
	if pod.Spec.SecurityContext.User != 65532 || !bytes.Contains(dockerfile, []byte("USER 65532:65532")) {
		t.Errorf("runs as %d, the image as somebody else", pod.Spec.SecurityContext.User)
	}
	if probe := strings.Join(c.LivenessProbe.Exec.Command, `", "`); strings.Join(c.Args, " ") != "serve" ||
		!bytes.Contains(dockerfile, []byte(`CMD ["`+probe+`"]`)) {
		t.Errorf("runs %v, probed by %v", c.Args, c.LivenessProbe.Exec.Command)
	}
	if len(c.Env) != 1 || len(c.Ports) != 1 || c.Env[0].Name != "DUESTREAM_METRICS_ADDR" ||
		c.Env[0].Value != fmt.Sprint(":", c.Ports[0].Number) ||
		c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.ReadinessProbe.HTTPGet.Port != c.Ports[0].Name {
		t.Errorf("it listens on %v, with ports %v, and is asked at %v", c.Env, c.Ports, c.ReadinessProbe)
	}
	if len(c.VolumeMounts) != 1 || !bytes.Contains(dockerfile, []byte("ENV DUESTREAM_HEALTH_FILE="+c.VolumeMounts[0].Path+"/")) {
		t.Errorf("the image's health file is not in %v", c.VolumeMounts)
	}
	if pod.Spec.Grace <= 10 {
		t.Errorf("killed after %d s, and serve may take 10 to stop", pod.Spec.Grace)
	}
}

// systemd finds no fault in the unit, if systemd-analyze is installed.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/duestream.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Type=notify", "NotifyAccess=main", "WatchdogSec=30", "Restart=on-failure"} {
		if !bytes.Contains(text, []byte("\n"+line+"\n")) {
			t.Errorf("the unit does not say %s", line)
		}
	}
	const binary = "/usr/local/bin/duestream"
	if !bytes.Contains(text, []byte("ExecStart="+binary+" serve\n")) {
		t.Error("the unit does not run serve")
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd is not installed here: the unit was only read")
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "duestream.service")
	text = bytes.ReplaceAll(text, []byte(binary), []byte(self)) // a path that exists
	if err := os.WriteFile(unit, text, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) { // it also reports other units of this machine
		if strings.Contains(line, "duestream") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil && !bytes.Contains(out, []byte("duestream")) {
		t.Logf("systemd-analyze: %v\n%s", err, out)
	}
}
