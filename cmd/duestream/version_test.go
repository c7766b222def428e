package main

import (
	"strings"
	"testing"
)

func TestVersionAndCompletion(t *testing.T) {
	c := &cli{t: t, url: unreachable}
	if out := c.ok("version"); !strings.HasPrefix(out, "duestream devel (go1.") {
		t.Error(out)
	}
	var v struct{ Version, Go string }
	c.json(&v, "version")
	if v.Version != "devel" || v.Go == "" {
		t.Errorf("%+v", v)
	}
	if out := c.ok("--version"); out != "duestream devel\n" {
		t.Error(out)
	}
	if out := c.ok(); !strings.Contains(out, "Available Commands:") {
		t.Error(out)
	}
}
