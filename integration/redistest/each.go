package redistest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each runs f as a subtest on the shared server, and on two images of [Images] that the local Docker engine has: one of
// Redis and one of Valkey. Each takes other images every day, so that each image is used within three days. With
// DUESTREAM_TEST_ONLY=all, f runs on all images. The first test that needs an image starts a server, and all tests of
// the process share it. One log line names the images that are missing. Subtests have the name of the image
// ("redis:7.0", "valkey:8.1"), or "process" or "url" if the shared server is not a container.
//
// DUESTREAM_TEST_ONLY can also be a comma-separated list of images, subtest names, or "shared": f then runs on these
// only. Each fails the test when no server is left to run on.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	only := strings.FieldsFunc(os.Getenv(EnvOnly), func(r rune) bool { return r == ',' || r == ' ' })
	wanted := func(names ...string) bool {
		names = append(names, "all")
		return len(only) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(only, n) })
	}
	ran := 0
	s := Shared(t)
	if wanted("shared", s.short, s.image) {
		ran++
		t.Run(s.short, func(t *testing.T) { f(t, s) })
	}
	if err := engine(); errors.Is(err, errHelper) { // without the helper process, it is unknown which images there are
		t.Fatalf("redistest: %v", err)
	}
	var there, absent []string
	for _, image := range Images() {
		switch {
		case image == s.image || !wanted(image, shortName(image)):
		case hasImage(image):
			there = append(there, image)
		default:
			absent = append(absent, image)
		}
	}
	if len(only) == 0 {
		there = turns(there, today())
	}
	for _, image := range there {
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

// today counts days. It has the same value for all tests of a process.
var today = sync.OnceValue(func() int { return int(time.Now().Unix() / (24 * 60 * 60)) })

// turns returns the images for a day: one of Redis and one of Valkey, if there are any.
func turns(images []string, day int) (some []string) {
	byProduct := map[bool][]string{}
	for _, image := range images {
		valkey := strings.Contains(image, "valkey")
		byProduct[valkey] = append(byProduct[valkey], image)
	}
	for _, valkey := range []bool{false, true} {
		if all := byProduct[valkey]; len(all) > 0 {
			some = append(some, all[day%len(all)])
		}
	}
	return some
}
