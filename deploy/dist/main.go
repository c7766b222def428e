// Command dist builds what a release of duestream consists of, for linux/amd64 and linux/arm64: an archive with the
// binary, manual pages and completions; a Debian package with the systemd unit; a container image; a bill of materials
// (SBOM) of the binary; and the checksums of all of them. `make dist` runs it.
//
// The same commit gives the same bytes, in any directory and at any time (TestTwoBuildsAreEqual). So all times in the
// files are that of the commit, all files belong to root, and the certificates in the image come from a Go module and
// not from this machine.
//
// It is a module of its own, so that its libraries do not become dependencies of duestream.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	var r release
	var epoch int64
	flag.StringVar(&r.version, "version", "", "version of the release, such as v0.1.0")
	flag.Int64Var(&epoch, "epoch", 0, "time of the commit, in Unix seconds: the time of all files")
	flag.StringVar(&r.source, "source", "../..", "directory of duestream's module")
	flag.StringVar(&r.out, "out", "../../dist", "directory for the files, which is created")
	flag.Parse()
	r.time = time.Unix(epoch, 0).UTC()
	err := r.check()
	if err == nil {
		err = r.build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// release is what a run builds.
type release struct {
	version string
	time    time.Time // of all files
	source  string    // directory of duestream's module
	out     string    // directory for the files
}

// architectures are those of the release, by Go's names, which are also Debian's and those of container images.
var architectures = []string{"amd64", "arm64"}

func (r release) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("argument %q: there are only flags", flag.Arg(0))
	case r.version == "":
		return errors.New("version: is empty; give -version v0.1.0")
	case r.time.Unix() <= 0:
		return errors.New("epoch: must be above 0; give -epoch $(git log -1 --format=%ct)")
	}
	return nil
}

// build writes all files of the release.
func (r release) build() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "duestream-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	pages, err := r.pages(work)
	if err != nil {
		return err
	}
	var names []string
	var images []image
	for _, arch := range architectures {
		binary := filepath.Join(work, "duestream-"+arch)
		if err := r.compile(binary, arch); err != nil {
			return err
		}
		p := product{release: r, arch: arch, binary: binary, pages: pages}
		for _, one := range []struct {
			suffix string
			write  func(path string) error
		}{{".tar.gz", p.writeArchive}, {".deb", p.writeDeb}, {".cdx.json", p.writeBill}} {
			name := p.name() + one.suffix
			if err := one.write(filepath.Join(r.out, name)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			names = append(names, name)
		}
		img, err := p.image()
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		images = append(images, image{arch, img})
		name := p.name() + "-image.tar"
		if err := r.writeImage(filepath.Join(r.out, name), img); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		names = append(names, name)
	}
	name := "duestream-" + r.plainVersion() + "-image-oci.tar"
	if err := r.writeIndex(filepath.Join(r.out, name), work, images); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return r.writeSums(append(names, name))
}

// product is the release for one architecture.
type product struct {
	release
	arch   string
	binary string // path of the binary
	pages  []file // manual pages and completions
}

// name is the beginning of the names of the product's files.
func (p product) name() string { return "duestream-" + p.plainVersion() + "-linux-" + p.arch }
