package human

import "strconv"

// Thousands writes 1234567 as 1,234,567.
func Thousands[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Counted returns a number with its noun: "1 queue", "2 queues".
func Counted[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return Thousands(n) + " " + what
}

// Bytes writes a size in the greatest unit that leaves four digits or so.
func Bytes(n int64) string {
	switch {
	case n < 10<<10:
		return strconv.FormatInt(n, 10) + " B"
	case n < 10<<20:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return Thousands(n>>20) + " MiB"
}
