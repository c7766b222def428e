package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

func sorted(files []file) []file {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return files
}

// sources reads files of the project: the path in a package by the path in the project.
func (r release) sources(paths map[string]string) (files []file, err error) {
	for from, to := range paths {
		content, err := os.ReadFile(filepath.Join(r.source, from))
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: to, content: content})
	}
	return files, nil
}

// program returns the binary as a file of a package.
func (p product) program(path string) (file, error) {
	content, err := os.ReadFile(p.binary)
	return file{path: path, content: content, executable: true}, err
}

// writeArchive writes the archive for systems without a package.
func (p product) writeArchive(path string) error {
	files, err := p.sources(map[string]string{"LICENSE": "LICENSE", "README.md": "README.md",
		"CHANGELOG.md": "CHANGELOG.md", "deploy/duestream.service": "duestream.service"})
	if err != nil {
		return err
	}
	binary, err := p.program("duestream")
	if err != nil {
		return err
	}
	files = append(files, binary)
	for _, page := range p.pages {
		files = append(files, file{path: "share/" + page.path, content: page.content})
	}
	for i := range files {
		files[i].path = p.name() + "/" + files[i].path
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, files, p.time); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// writeTar writes files as a tar, in the order of their paths. They belong to root.
func writeTar(w io.Writer, files []file, at time.Time) error {
	t := tar.NewWriter(w)
	for _, f := range sorted(files) {
		mode := int64(0o644)
		if f.executable {
			mode = 0o755
		}
		err := t.WriteHeader(&tar.Header{Name: f.path, Mode: mode, Size: int64(len(f.content)), ModTime: at,
			Uname: "root", Gname: "root", Format: tar.FormatPAX})
		if err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}

// writeSums writes the checksums of files, in the form that `sha256sum --check` reads.
func (r release) writeSums(names []string) error {
	slices.Sort(names)
	var sums bytes.Buffer
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), sums.Bytes(), 0o644)
}
