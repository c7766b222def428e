package conformance

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A worker may acknowledge by XACKDEL with ACKED on a server that has the command. With KEEPREF, DELREF or no option,
// the command deletes the entry under other groups, so the kit refuses the worker, whatever its cases show.
func TestWorkersThatAcknowledgeByXACKDEL(t *testing.T) {
	t.Parallel()
	dependOnExamples(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		known, err := c.Do(t.Context(), c.B().CommandInfo().CommandName("XACKDEL").Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		if len(known) == 0 || known[0].IsNil() {
			t.Log("this server has no XACKDEL")
			return
		}
		for option, rule := range map[string]string{"ACKED ": "", "": "keeps-streams", "KEEPREF ": "keeps-streams",
			"DELREF ": "keeps-streams"} {
			dir := t.TempDir()
			m := mutation{file: "shell/worker.sh", old: "XACK $(quote \"$stream\") $group $entry",
				new: "XACKDEL $(quote \"$stream\") $group " + option + "IDS 1 $entry"}
			if err := m.write(dir); err != nil {
				t.Fatal(err)
			}
			cfg := config(Worker, Good)
			cfg.URL, cfg.Prefix = s.URL(), s.Prefix(t)
			cfg.Command = []string{"bash", filepath.Join(dir, "conformance.sh"), "worker"}
			cfg.Cases = slices.DeleteFunc(cfg.Cases, func(one Case) bool {
				return !slices.Contains([]string{"deliver", "for-own-group", "ack-after-work"}, one.Name)
			})
			if rule == "" {
				passes(t, cfg, 0)
				continue
			}
			report, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Cases {
				if r.State != Failed || r.Broke != rule || !strings.Contains(r.Seen, "XACKDEL") {
					t.Errorf("%sIDS: %s is %s by rule %q (%s), want it refused by %q", option, r.Name, r.State, r.Broke, r.Seen, rule)
				}
			}
		}
	})
}
