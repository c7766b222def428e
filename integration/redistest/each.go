package redistest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// Each runs f as a subtest for the shared server and for every image of [Images] that the local Docker engine has. An
// image is started once per process, by the first test that gets to it, and shared; images that are not there are named
// in one log line. Subtests are named after the image ("redis:7.0", "valkey:8.1"); a shared server that is not a
// container is named "process" or "url".
//
// DUESTREAM_TEST_ONLY restricts it to a comma-separated list of images, subtest names, or "shared". It fails the test
// when nothing is left to run on.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	only := strings.FieldsFunc(os.Getenv(EnvOnly), func(r rune) bool { return r == ',' || r == ' ' })
	wanted := func(names ...string) bool {
		return len(only) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(only, n) })
	}
	ran := 0
	s := Shared(t)
	if wanted("shared", s.short, s.image) {
		ran++
		t.Run(s.short, func(t *testing.T) { f(t, s) })
	}
	if err := engine(); errors.Is(err, errHelper) { // nobody knows which images are there
		t.Fatalf("redistest: %v", err)
	}
	var absent []string
	for _, image := range Images() {
		if image == s.image || !wanted(image, shortName(image)) {
			continue
		}
		if !hasImage(image) {
			absent = append(absent, image)
			continue
		}
		ran++
		t.Run(shortName(image), func(t *testing.T) {
			s, err := imageServer(image)
			if err != nil {
				t.Fatalf("redistest: %v", err)
			}
			f(t, s)
		})
	}
	if len(absent) > 0 {
		t.Logf("redistest: not run on %s: no such image in a local Docker engine", strings.Join(absent, ", "))
	}
	if ran == 0 {
		t.Fatalf("redistest: %s=%q leaves no server to run on", EnvOnly, os.Getenv(EnvOnly))
	}
}
