package human

import "strconv"

// Thousands formats 1234567 as 1,234,567.
func Thousands[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Counted returns a number with its noun: "1 queue", "2 queues".
func Counted[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Thousands(n) + " " + noun
}

// Bytes formats a size in B, KiB or MiB. The unit changes at 10 KiB and at 10 MiB.
func Bytes(n int64) string {
	switch {
	case n < 10<<10:
		return strconv.FormatInt(n, 10) + " B"
	case n < 10<<20:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return Thousands(n>>20) + " MiB"
}

// Estimate formats a number like Thousands, with ~ before it if it is an estimate.
func Estimate(n int64, approx bool) string {
	if approx {
		return "~" + Thousands(n)
	}
	return Thousands(n)
}
