package main

import (
	"cmp"
	"debug/buildinfo"
	"os"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes the bill of materials of the binary in the format CycloneDX: the Go modules that the linker put
// into it, and Go's own library.
func (p product) writeBill(path string) error {
	info, err := buildinfo.ReadFile(p.binary)
	if err != nil {
		return err
	}
	components := []cdx.Component{{
		Type: cdx.ComponentTypeLibrary, BOMRef: "stdlib", Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		components = append(components, cdx.Component{
			Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: m.Path, Version: m.Version, PackageURL: url,
		})
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	needs := make([]string, len(components))
	for i, c := range components {
		needs[i] = c.BOMRef
	}
	bom := cdx.NewBOM()
	self := "pkg:golang/" + info.Main.Path + "@" + p.version + "?goarch=" + p.arch + "&goos=linux"
	bom.Metadata = &cdx.Metadata{
		Timestamp: p.time.Format(time.RFC3339),
		Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: self, Name: "duestream",
			Version: p.plainVersion(), PackageURL: self},
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: self, Dependencies: &needs}}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return cmp.Or(err, f.Close())
}
