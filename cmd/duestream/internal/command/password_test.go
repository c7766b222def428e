package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// The password of a URL without one comes from a file or a variable. A hint names the place of the password that was
// refused, and giving both is an error.
func TestPasswordsMayComeFromFilesAndVariables(t *testing.T) {
	s := redistest.Own(t)
	c := clitest.NewOn(t, s)
	s.Do(t, "ACL", "SETUSER", "low", "on", ">secret", "~*", "&*", "+@all")
	c.URL = "redis://low@" + s.Addr()
	c.Fails(exit.Failure, []string{"denies access", "hint: check user and password in the URL"}, "stats")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", file)
	c.OK("stats")
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Regression: the hint pointed to the URL, although the URL has no password.
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", wrong)
	c.Fails(exit.Failure, []string{"denies access", "hint: check the password in " + wrong +
		" (DUESTREAM_REDIS_PASSWORD_FILE), the user in the URL"}, "stats")
	c.Fails(exit.Failure, []string{"denies access", wrong}, "health")
	t.Setenv("DUESTREAM_REDIS_PASSWORD_FILE", file)
	inURL := clitest.NewOn(t, s)
	inURL.URL = "redis://low:wrong@" + s.Addr()
	inURL.Fails(exit.Failure, []string{"hint: check user and password in the URL"}, "stats")
	t.Setenv("DUESTREAM_REDIS_PASSWORD", "other")
	if r := c.Fails(exit.Invalid, []string{"only one may be"}, "stats"); strings.Contains(r.Err, "other") {
		t.Error(r.Err)
	}
	os.Unsetenv("DUESTREAM_REDIS_PASSWORD_FILE")
	c.Fails(exit.Failure, []string{"denies access", "hint: check the password in DUESTREAM_REDIS_PASSWORD, the user"},
		"stats")
	t.Setenv("DUESTREAM_REDIS_PASSWORD", "secret")
	c.OK("stats")
}
