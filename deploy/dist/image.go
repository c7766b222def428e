package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image is the image of one architecture.
type image struct {
	arch string
	v1.Image
}

// image returns the container image: the binary and the authorities, and nothing else. It has the settings of the
// project's Dockerfile (TestTwoBuildsAreEqual compares them).
func (p product) image() (v1.Image, error) {
	binary, err := p.program("usr/local/bin/duestream")
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img := base
	for _, f := range []file{{path: "etc/ssl/certs/ca-certificates.crt", content: authorities()}, binary} {
		layer, err := p.layer(f)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	return mutate.ConfigFile(img, p.imageConfig(img))
}

func (p product) layer(f file) (v1.Layer, error) {
	var packed bytes.Buffer
	if err := writeTar(&packed, []file{f}, p.time); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

func (p product) imageConfig(img v1.Image) *v1.ConfigFile {
	config, err := img.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", p.arch, v1.Time{Time: p.time}
	for i := range config.History {
		config.History[i] = v1.History{Created: v1.Time{Time: p.time}}
	}
	config.Config = v1.Config{
		User:       "65532:65532",
		Env:        []string{"PATH=/usr/local/bin", "DUESTREAM_HEALTH_FILE=/dev/shm/duestream-health"},
		Entrypoint: []string{"duestream"},
		Cmd:        []string{"serve"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "duestream", "health", "--self"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 10 * time.Second, Retries: 3},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "duestream",
			"org.opencontainers.image.version":  p.plainVersion(),
			"org.opencontainers.image.source":   "https://github.com/duestream/duestream",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return config
}

// authorities returns the certificates that Mozilla trusts, as Go's module x509roots has them. Those that it trusts
// with a condition are left out, because a file of certificates cannot express the condition.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return all.Bytes()
}

// writeImage writes an image in the form that `docker load` reads.
func (r release) writeImage(path string, img v1.Image) error {
	tag, err := name.NewTag("duestream:" + r.tag())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, img)
}

// tag is the tag of the image. A tag cannot have a plus sign.
func (r release) tag() string {
	return string(bytes.ReplaceAll([]byte(r.plainVersion()), []byte("+"), []byte("_")))
}

// writeIndex writes the images of all architectures as one OCI layout in a tar, for tools that copy images to a
// registry.
func (r release) writeIndex(path, work string, images []image) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, one := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one.Image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: one.arch}}})
	}
	root := filepath.Join(work, "oci")
	p, err := layout.Write(root, empty.Index)
	if err != nil {
		return err
	}
	tagged := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.tag()})
	if err := p.AppendIndex(index, tagged); err != nil {
		return err
	}
	var files []file
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		files = append(files, file{path: filepath.ToSlash(relative), content: content})
		return err
	})
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := writeTar(&packed, files, r.time); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
