package live

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// This file formats the values that top shows.

// styleIfSome returns the style for a number, and Plain if the number is 0.
func styleIfSome(n int64, s term.Style) term.Style {
	if n > 0 {
		return s
	}
	return term.Plain
}

// orZero returns the value behind a pointer, or the zero value for nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// alignLeft and alignRight return a text that is padded or cut to a width.
func alignLeft(text string, width int) string {
	text = human.OneLine(text, max(1, width))
	return text + strings.Repeat(" ", width-utf8.RuneCountInString(text))
}

func alignRight(text string, width int) string {
	text = human.OneLine(text, max(1, width))
	return strings.Repeat(" ", width-utf8.RuneCountInString(text)) + text
}

// count formats a number with at most five characters, after a ~ if it is an estimate.
func count(n int64, approx bool) string {
	text := compact(float64(n))
	if approx {
		text = "~" + text
	}
	return text
}

func compact(n float64) string {
	if n < 9999.5 {
		return human.Thousands(int64(n + 0.5))
	}
	for _, unit := range []string{"k", "M", "G", "T"} {
		if n /= 1000; n < 99.95 {
			return fmt.Sprintf("%.1f%s", n, unit)
		} else if n < 999.5 {
			return fmt.Sprintf("%.0f%s", n, unit)
		}
	}
	return "many"
}

// perSecond formats a rate. An unknown rate is nil.
func perSecond(rate *float64) string {
	switch {
	case rate == nil:
		return "-"
	case *rate > 0 && *rate < 9.95:
		return fmt.Sprintf("%.1f", max(0.1, *rate))
	}
	return compact(*rate)
}

func lateness[D ~int64](d D, known bool) string {
	if !known {
		return "-"
	}
	return human.Short(time.Duration(d))
}

// size formats a number of bytes.
func size(n int64) string {
	if n < 1<<20 {
		return human.Bytes(n)
	}
	if n < 10<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
