package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const testVersion = "v1.2.3-rc1"

var commitTime = time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)

// TestTwoBuildsAreEqual builds a release, and builds it again from a copy of the source in another directory. All files
// must be equal, byte by byte.
func TestTwoBuildsAreEqual(t *testing.T) {
	first := release{version: testVersion, time: commitTime, source: "../..", out: t.TempDir()}
	if err := first.build(); err != nil {
		t.Fatal(err)
	}
	t.Run("archive", func(t *testing.T) { checkArchive(t, first) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, first) })
	t.Run("bill", func(t *testing.T) { checkBill(t, first) })
	t.Run("image", func(t *testing.T) { checkImage(t, first) })

	second := first
	second.source, second.out = copyOfSource(t), filepath.Join(t.TempDir(), "new", "directory")
	if err := second.build(); err != nil {
		t.Fatal(err)
	}
	sums := read(t, filepath.Join(first.out, "SHA256SUMS"))
	if again := read(t, filepath.Join(second.out, "SHA256SUMS")); !bytes.Equal(sums, again) {
		t.Errorf("two builds differ:\n%s\n%s", sums, again)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = first.out
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	entries, err := os.ReadDir(first.out)
	if err != nil || bytes.Count(sums, []byte("\n")) != len(entries)-1 {
		t.Errorf("%d files, and these sums, %v:\n%s", len(entries), err, sums)
	}
}

// copyOfSource copies the files of the project into another directory.
func copyOfSource(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join("../..", path))
		if errors.Is(err, os.ErrNotExist) || err == nil && info.IsDir() {
			continue // deleted, or a link to a directory, which no Go package is
		}
		target := filepath.Join(to, path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, read(t, filepath.Join("../..", path)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func checkArchive(t *testing.T, r release) {
	z, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join(r.out, "duestream-1.2.3-rc1-linux-arm64.tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	headers, _ := unpack(t, z)
	const dir = "duestream-1.2.3-rc1-linux-arm64/"
	for _, want := range []string{"duestream", "LICENSE", "README.md", "duestream.service", "share/man/man1/duestream.1",
		"share/zsh/vendor-completions/_duestream"} {
		if headers[dir+want] == nil {
			t.Errorf("no %s", want)
		}
	}
	for path, h := range headers {
		want := int64(0o644)
		if path == dir+"duestream" {
			want = 0o755
		}
		if h.Mode != want || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(commitTime) {
			t.Errorf("%s: mode %o, owner %d:%d, time %s", path, h.Mode, h.Uid, h.Gid, h.ModTime)
		}
	}
}

// checkDeb asks Debian's own program about the package.
func checkDeb(t *testing.T, r release) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb, which every Debian has")
	}
	path := filepath.Join(r.out, "duestream-1.2.3-rc1-linux-amd64.deb")
	fields := output(t, "dpkg-deb", "--field", path)
	for _, want := range []string{"Package: duestream\n", "Version: 1.2.3~rc1\n", "Architecture: amd64\n"} {
		if !strings.Contains(fields, want) {
			t.Errorf("no %q in\n%s", want, fields)
		}
	}
	list := output(t, "dpkg-deb", "--contents", path)
	for _, want := range []string{
		`-rwxr-xr-x root/root .* \./usr/bin/duestream\n`,
		`-rw------- root/root .* \./etc/duestream/env\n`,
		`-rw-r--r-- root/root .* \./usr/lib/systemd/system/duestream\.service\n`,
		`-rw-r--r-- root/root .* \./usr/share/man/man1/duestream\.1\.gz\n`,
		`-rw-r--r-- root/root .* \./usr/share/bash-completion/completions/duestream\n`,
		`-rw-r--r-- root/root .* \./usr/share/doc/duestream/copyright\n`,
	} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	if strings.Contains(list, "/usr/local") {
		t.Errorf("a package must leave /usr/local alone:\n%s", list)
	}
	if conffiles := output(t, "dpkg-deb", "--info", path, "conffiles"); conffiles != settingsPath+"\n" {
		t.Errorf("files that an upgrade keeps: %q", conffiles)
	}
	dir := t.TempDir()
	output(t, "dpkg-deb", "--extract", path, dir)
	unit := string(read(t, filepath.Join(dir, unitPath)))
	if !strings.Contains(unit, "\nExecStart=/usr/bin/duestream serve\n") ||
		!strings.Contains(unit, "\nEnvironmentFile="+settingsPath+"\n") {
		t.Errorf("the unit is\n%s", unit)
	}
}

func checkBill(t *testing.T, r release) {
	var bill struct {
		Components []struct{ Name, Version string }
	}
	text := read(t, filepath.Join(r.out, "duestream-1.2.3-rc1-linux-amd64.cdx.json"))
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"std", "github.com/redis/rueidis", "github.com/spf13/cobra"} {
		i := slices.IndexFunc(bill.Components, func(c struct{ Name, Version string }) bool { return c.Name == want })
		if i < 0 || bill.Components[i].Version == "" {
			t.Errorf("%s is not in the bill, or has no version", want)
		}
	}
}

// checkImage compares the image with the project's Dockerfile, which builds the image of `make image`.
func checkImage(t *testing.T, r release) {
	img, err := tarball.ImageFromPath(filepath.Join(r.out, "duestream-1.2.3-rc1-linux-arm64-image.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || !config.Created.Equal(commitTime) {
		t.Errorf("built for %s at %s", config.Architecture, config.Created)
	}
	_, final, _ := strings.Cut(string(read(t, "../../Dockerfile")), "\nFROM scratch\n")
	for _, line := range []string{
		"USER " + config.Config.User,
		"ENV " + config.Config.Env[0],
		"ENV " + config.Config.Env[1],
		`ENTRYPOINT ["` + strings.Join(config.Config.Entrypoint, `", "`) + `"]`,
		`CMD ["` + strings.Join(config.Config.Cmd, `", "`) + `"]`,
		`HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["` +
			strings.Join(config.Config.Healthcheck.Test[1:], `", "`) + `"]`,
	} {
		if !strings.Contains(final, line+"\n") {
			t.Errorf("the Dockerfile does not say %q", line)
		}
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	headers, files := unpack(t, content)
	const certificates = "etc/ssl/certs/ca-certificates.crt"
	if len(headers) != 1 || bytes.Count(files[certificates], []byte("BEGIN CERTIFICATE")) < 100 {
		t.Errorf("%d files, %d bytes of certificates", len(headers), len(files[certificates]))
	}
}

// A version that is later for git is later for dpkg, too.
func TestDebianVersionsAreInOrder(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("needs dpkg, which every Debian has")
	}
	versions := []string{"a9d22528", "v0.1.0-rc1", "v0.1.0-rc1-4-gdeadbee", "v0.1.0-rc2", "v0.1.0", "v0.1.0-7-gdeadbee",
		"v0.1.1", "v0.10.0"}
	for i, earlier := range versions[:len(versions)-1] {
		a, b := release{version: earlier}.debianVersion(), release{version: versions[i+1]}.debianVersion()
		compare := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", a, "lt", b)
		if out, err := compare.CombinedOutput(); err != nil {
			t.Errorf("%s (%s) is not before %s (%s): %s", a, earlier, b, versions[i+1], out)
		}
	}
}

func TestWrongFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]release{
		"version: is empty":      {time: commitTime},
		"epoch: must be above 0": {version: testVersion},
	} {
		if err := r.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return string(out)
}

// unpack reads a tar: the headers and the contents of its files, by path.
func unpack(t *testing.T, from io.Reader) (headers map[string]*tar.Header, files map[string][]byte) {
	t.Helper()
	headers, files = map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
	}
}
