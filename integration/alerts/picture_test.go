package alerts

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// curve is one series of a panel: its legend and its values, NaN for gaps.
type curve struct {
	name   string
	values []float64
}

// legend fills the labels of a series into a legend format.
func legend(form string, labels map[string]string) string {
	text := regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(form, func(m string) string {
		return labels[strings.Trim(m, "{}")]
	})
	return strings.Join(strings.Fields(text), " ")
}

var colours = []string{"#1f77b4", "#d9730d", "#2a9d4e", "#c5283d", "#7e57c2", "#8d6e63", "#d64fa0", "#607d8b"}

const (
	unitX, unitY = 50, 30 // pixels per step of the board's grid
	mostCurves   = 8      // of a panel; if there are more, those with the highest values are drawn
)

// picture returns an SVG of the panels in the board's layout. drawn has the curves of each panel, by its ID. Each mark
// is a point in time, as a fraction of the whole time, where each panel gets a numbered line.
func picture(b board, drawn map[int][]curve, step time.Duration, marks []float64) string {
	height := 0
	for _, p := range b.Panels {
		height = max(height, (p.GridPos.Y+p.GridPos.H)*unitY)
	}
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="10">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#f4f5f7"/>`+"\n", gridWidth*unitX, height)
	for _, p := range b.Panels {
		x, y, w, h := p.GridPos.X*unitX, p.GridPos.Y*unitY, p.GridPos.W*unitX, p.GridPos.H*unitY
		if p.Type == "row" {
			fmt.Fprintf(&svg, `<text x="%d" y="%d" font-size="15" font-weight="bold">%s</text>`+"\n", x+8, y+21, html.EscapeString(p.Title))
			continue
		}
		fmt.Fprintf(&svg, `<g transform="translate(%d %d)"><rect x="3" y="3" width="%d" height="%d" fill="#fff" stroke="#d8dade"/>`+
			`<text x="10" y="18" font-size="12" font-weight="bold">%s</text>`+"\n", x, y, w-6, h-6, html.EscapeString(p.Title))
		drawPanel(&svg, p, drawn[p.ID], w, h, step, marks)
		svg.WriteString("</g>\n")
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}

// drawPanel draws the curves of one panel, of w by h pixels, with a scale, the marks and a legend.
func drawPanel(svg *strings.Builder, p panel, curves []curve, w, h int, step time.Duration, marks []float64) {
	top := func(c curve) (most float64) {
		for _, v := range c.values {
			if !math.IsNaN(v) {
				most = max(most, v)
			}
		}
		return most
	}
	slices.SortStableFunc(curves, func(a, b curve) int { return cmp.Compare(top(b), top(a)) })
	all := len(curves)
	curves = curves[:min(all, mostCurves)]
	low, high := 0.0, 0.0
	for _, c := range curves {
		for _, v := range c.values {
			if !math.IsNaN(v) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == low {
		high = low + 1
	}
	left, right, above, below := 62.0, float64(w-14), 28.0, float64(h-50)
	at := func(v float64) float64 { return below - (v-low)/(high-low)*(below-above) }
	for i := range 4 {
		v := low + (high-low)*float64(i)/3
		fmt.Fprintf(svg, `<path d="M%.0f %.1fH%.0f" stroke="#e6e8eb"/><text x="%.0f" y="%.1f" text-anchor="end" fill="#555">%s</text>`+"\n",
			left, at(v), right, left-5, at(v)+3, amount(v, p.FieldConfig.Defaults.Unit))
	}
	for i, mark := range marks {
		x := left + (right-left)*mark
		fmt.Fprintf(svg, `<path d="M%.0f %.0fV%.0f" stroke="#c9d3e6" stroke-dasharray="2 2"/>`+
			`<text x="%.0f" y="%.0f" font-size="8" fill="#7385a8">%d</text>`+"\n", x, above-4, below, x+2, above+1, i+1)
	}
	for i, c := range curves {
		fmt.Fprintf(svg, `<path d="%s" fill="none" stroke="%s"/>`+"\n", path(c.values, left, right, at), colours[i%len(colours)])
	}
	if len(curves) > 0 {
		minutes := step.Minutes() * float64(len(curves[0].values)-1)
		fmt.Fprintf(svg, `<text x="%.0f" y="%.0f" fill="#555">0</text><text x="%.0f" y="%.0f" text-anchor="end" fill="#555">%.0f min</text>`+"\n",
			left, below+12, right, below+12, minutes)
	}
	x, y := 10.0, below+25
	for i, c := range curves {
		width := 18 + 5.9*float64(len(c.name))
		if x+width > right && x > 10 {
			x, y = 10, y+11
		}
		if y > float64(h-8) {
			break
		}
		fmt.Fprintf(svg, `<rect x="%.0f" y="%.0f" width="8" height="3" fill="%s"/><text x="%.0f" y="%.0f">%s</text>`+"\n", x, y-4,
			colours[i%len(colours)], x+11, y, html.EscapeString(c.name))
		x += width
	}
	if all > mostCurves {
		fmt.Fprintf(svg, `<text x="%.0f" y="18" text-anchor="end" fill="#555">and %d more</text>`+"\n", right, all-mostCurves)
	}
}

// path returns an SVG path of the values from left to right, with gaps for NaN. at converts a value into a height.
func path(values []float64, left, right float64, at func(float64) float64) string {
	var d strings.Builder
	pen := "M"
	for i, v := range values {
		if math.IsNaN(v) {
			pen = "M"
			continue
		}
		x := left + (right-left)*float64(i)/float64(max(1, len(values)-1))
		d.WriteString(pen + strconv.FormatFloat(x, 'f', 0, 64) + " " + strconv.FormatFloat(at(v), 'f', 1, 64))
		if pen == "M" {
			d.WriteString("h1") // makes a single value between gaps visible
		}
		pen = "L"
	}
	return d.String()
}

// amount formats a value with its unit for people.
func amount(v float64, unit string) string {
	short := func(v float64) string {
		if math.Abs(v) >= 100 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	switch size := math.Abs(v); {
	case unit == "s" && size > 0 && size < 1:
		return short(v*1000) + " ms"
	case unit == "s":
		return short(v) + " s"
	case unit == "bytes" && size < 1<<20:
		return short(v/(1<<10)) + " KiB"
	case unit == "bytes":
		return short(v/(1<<20)) + " MiB"
	case unit == "ops":
		return short(v) + "/s"
	default:
		return short(v)
	}
}
