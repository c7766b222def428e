package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v2"
)

// composeFile is the part of docker-compose.yml that this test checks.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Profiles    []string
		Command     []string
		Environment map[string]string
		Ports       []string
		Volumes     []string
	}
	Volumes map[string]any
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// `docker compose --profile observe up` starts a Prometheus that scrapes the bridges, and a Grafana that reads from
// that Prometheus. Both use the files in deploy. Neither starts without the profile, and no port is open to other
// machines. The test reads the files, and starts nothing.
func TestComposeProfileObserve(t *testing.T) {
	t.Parallel()
	var file composeFile
	readYAML(t, "../docker-compose.yml", &file)
	mounts := map[string]string{} // by path in a container: the mounted file or directory
	for name, s := range file.Services {
		if observes := name == "prometheus" || name == "grafana"; observes != slices.Equal(s.Profiles, []string{"observe"}) {
			t.Errorf("%s has the profiles %v", name, s.Profiles)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to others: %s", name, port)
			}
		}
		for _, v := range s.Volumes {
			parts := strings.Split(v, ":")
			_, declared := file.Volumes[parts[0]]
			if source := filepath.Join("..", parts[0]); strings.HasPrefix(parts[0], "./") {
				mounts[parts[1]] = source
				if _, err := os.Stat(source); err != nil || len(parts) != 3 || parts[2] != "ro" {
					t.Errorf("%s mounts %s: %v", name, v, err)
				}
			} else if !declared {
				t.Errorf("%s mounts %s, which no volume is", name, v)
			}
		}
	}
	var config struct {
		Rules  []string `yaml:"rule_files"`
		Scrape []struct {
			DNS []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, mounts["/etc/prometheus/prometheus.yml"], &config)
	if len(config.Rules) != 1 || mounts[config.Rules[0]] == "" {
		t.Errorf("rules %v are not mounted", config.Rules)
	}
	if !slices.Equal(file.Services["bridge"].Command, []string{"serve", "--metrics", ":9090"}) || len(config.Scrape) != 1 ||
		len(config.Scrape[0].DNS) != 1 || config.Scrape[0].DNS[0].Port != 9090 || config.Scrape[0].DNS[0].Names[0] != "bridge" {
		t.Errorf("%+v", config.Scrape)
	}
	var sources struct {
		Datasources []struct{ UID, Type, URL string }
	}
	provisioning := mounts["/etc/grafana/provisioning"]
	readYAML(t, filepath.Join(provisioning, "datasources", "prometheus.yml"), &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("%+v", sources)
	}
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	readYAML(t, filepath.Join(provisioning, "dashboards", "duestream.yml"), &boards)
	board := file.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if len(boards.Providers) != 1 || filepath.Dir(board) != boards.Providers[0].Options.Path || mounts[board] == "" {
		t.Errorf("the board at %s is not provisioned: %+v", board, boards)
	}
	text, err := os.ReadFile(mounts[board])
	if err != nil || !json.Valid(text) {
		t.Errorf("the board: %v", err)
	}
}
