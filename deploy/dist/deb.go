package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

const unitPath = "/usr/lib/systemd/system/duestream.service"

// afterTag matches what `git describe` prints for a commit after a tag.
var afterTag = regexp.MustCompile(`^(.*)-(\d+)-g([0-9a-f]+)$`)

// debianVersion returns the version in Debian's order: a release candidate (v1.0.0-rc1) comes before the release, and a
// commit after a tag comes behind it. A version without a number, such as the hash of a commit, comes before all
// others.
func (r release) debianVersion() string {
	v := r.plainVersion()
	after := ""
	if m := afterTag.FindStringSubmatch(v); m != nil {
		v, after = m[1], "+"+m[2]+".g"+m[3]
	}
	v = strings.ReplaceAll(strings.Replace(v, "-", "~", 1), "-", ".")
	if !strings.Contains(v, ".") {
		v = "0~" + v
	}
	return v + after
}

// writeDeb writes the Debian package. Its service is neither enabled nor started, because it needs the URL of a Redis.
func (p product) writeDeb(path string) error {
	contents, err := p.debContents()
	if err != nil {
		return err
	}
	stage, err := os.MkdirTemp("", "duestream-deb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	info := &nfpm.Info{
		Name: "duestream", Arch: p.arch, Platform: "linux", Version: p.debianVersion(), VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: "The duestream authors <authors@duestream.invalid>",
		Homepage: "https://github.com/duestream/duestream", License: "Apache-2.0", MTime: p.time,
		Description: "Redis Streams bridge for delayed messages, delivered at least once\n" +
			"A producer schedules a message in Redis. When the message is due, duestream\n" +
			"moves it into a Redis Stream. Consumer groups in any language read the stream.\n" +
			"This package has the command and a systemd unit for a bridge.",
		Overridables: nfpm.Overridables{
			Recommends: []string{"ca-certificates"},
			Suggests:   []string{"redis-server"},
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(p.source, "deploy/dist/debian/postinst"),
				PreRemove:   filepath.Join(p.source, "deploy/dist/debian/prerm"),
				PostRemove:  filepath.Join(p.source, "deploy/dist/debian/postrm"),
			},
		},
	}
	for i, f := range contents {
		source := filepath.Join(stage, string(rune('a'+i/26))+string(rune('a'+i%26)))
		if err := os.WriteFile(source, f.content, 0o600); err != nil {
			return err
		}
		c := &files.Content{Source: source, Destination: f.path, FileInfo: &files.ContentFileInfo{Owner: "root",
			Group: "root", Mode: modeOf(f), MTime: p.time}}
		if f.path == settingsPath {
			c.Type = files.TypeConfig
		}
		info.Contents = append(info.Contents, c)
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := deb.Default.Package(info, &packed); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// settingsPath is the file with the settings of the service, which only root may read.
const settingsPath = "/etc/duestream/env"

func modeOf(f file) fs.FileMode {
	switch {
	case f.executable:
		return 0o755
	case f.path == settingsPath:
		return 0o600
	}
	return 0o644
}

// debContents returns the files of the Debian package.
func (p product) debContents() ([]file, error) {
	contents, err := p.sources(map[string]string{
		"deploy/dist/debian/env":       settingsPath,
		"deploy/dist/debian/copyright": "/usr/share/doc/duestream/copyright",
		"deploy/duestream.service":     unitPath,
	})
	if err != nil {
		return nil, err
	}
	for i := range contents {
		if contents[i].path == unitPath {
			if contents[i].content, err = debianUnit(contents[i].content); err != nil {
				return nil, err
			}
		}
	}
	binary, err := p.program("/usr/bin/duestream")
	if err != nil {
		return nil, err
	}
	contents = append(contents, binary)
	changes, err := p.sources(map[string]string{"CHANGELOG.md": "/usr/share/doc/duestream/CHANGELOG.md.gz"})
	if err != nil {
		return nil, err
	}
	for _, f := range append(changes, p.pages...) {
		switch {
		case strings.HasPrefix(f.path, "man/"):
			f.path, f.content = "/usr/share/"+f.path+".gz", compressed(f.content)
		case strings.HasSuffix(f.path, ".gz"):
			f.content = compressed(f.content)
		default:
			f.path = "/usr/share/" + f.path
		}
		contents = append(contents, f)
	}
	return sorted(contents), nil
}

// debianUnit returns the unit for the binary of the package. The comment that tells how to install the unit by hand is
// left out.
func debianUnit(unit []byte) ([]byte, error) {
	const ours, theirs = "ExecStart=/usr/local/bin/duestream ", "ExecStart=/usr/bin/duestream "
	_, rest, found := bytes.Cut(unit, []byte("[Unit]\n"))
	if !found || bytes.Count(rest, []byte(ours)) != 1 {
		return nil, errors.New("deploy/duestream.service: no section [Unit], or not one line " + ours)
	}
	rest = bytes.Replace(rest, []byte(ours), []byte(theirs), 1)
	return append([]byte("# The settings of this service are in "+settingsPath+".\n[Unit]\n"), rest...), nil
}

func compressed(content []byte) []byte {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(content)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(err) // a buffer takes everything
	}
	return packed.Bytes()
}
