package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed assets
var assetFiles embed.FS

// asset is a file that the pages load.
type asset struct {
	plain, zipped []byte // zipped is nil if gzip does not make the file smaller
	version       string // of the content, for the address
	contentType   string
}

// assets holds the files by their path below assets/.
var assets = readAssets()

func readAssets() map[string]asset {
	all := map[string]asset{}
	err := fs.WalkDir(assetFiles, "assets", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		a := asset{plain: content, version: hex.EncodeToString(sum[:6])}
		a.contentType = mime.TypeByExtension(path.Ext(name))
		var zipped bytes.Buffer
		z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err != nil {
			return err
		}
		_, _ = z.Write(content) // a write to a buffer does not fail
		if err := z.Close(); err != nil {
			return err
		}
		if zipped.Len() < len(content) {
			a.zipped = zipped.Bytes()
		}
		all[strings.TrimPrefix(name, "assets/")] = a
		return nil
	})
	if err != nil {
		panic(err)
	}
	return all
}

// assetAddress returns the relative address of a file, with the version of its content, so that browsers keep the file.
func assetAddress(name string) string { return "assets/" + name + "?v=" + assets[name].version }

// serveAsset answers a request for a file of the pages. It needs no token.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	a, ok := assets[strings.TrimPrefix(r.URL.Path, "/assets/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Vary", "Accept-Encoding")
	if r.URL.Query().Get("v") == a.version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache")
	}
	content := a.plain
	if a.zipped != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content = a.zipped
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	_, _ = w.Write(content)
}
