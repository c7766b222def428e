package term

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Table prints rows in columns. The first row is the header.
func (p Paint) Table(w io.Writer, rows [][]string) { p.TableWithHeaders(w, 1, rows) }

// TableWithHeaders is Table with several header rows. A row that begins with a space belongs to the last header, any
// other row to the first.
func (p Paint) TableWithHeaders(w io.Writer, headers int, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	widths := columnWidths(rows)
	for r, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			style := Strong
			if r >= headers {
				header := rows[0]
				if strings.HasPrefix(row[0], " ") {
					header = rows[headers-1]
				}
				style = cellStyle(header[i], cell)
			}
			line.WriteString(p.Text(style, cell))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]+2-utf8.RuneCountInString(cell)))
			}
		}
		fmt.Fprintln(w, line.String())
	}
}

func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// TableWidth returns the printed width of a table.
func TableWidth(rows [][]string) (width int) {
	for _, w := range columnWidths(rows) {
		width += w + 2
	}
	return width - 2
}

// nonZero matches a count that is not 0, or an estimate of such a count.
var nonZero = regexp.MustCompile(`^~?[0-9,]*[1-9][0-9,]*$`)

// cellStyle returns the style of a cell. In all tables, counts of dead letters are Bad, and counts of overdue
// messages Alert.
func cellStyle(column, cell string) Style {
	switch {
	case !nonZero.MatchString(cell):
		return Plain
	case column == "DEAD":
		return Bad
	case column == "OVERDUE":
		return Alert
	}
	return Plain
}

// Table prints rows in columns, without colours. Cells must not hold tabs.
func Table(w io.Writer, rows [][]string) { Paint(false).Table(w, rows) }

// FirstRows prints the header and the first rows of total, and how many more rows there are.
func FirstRows(w io.Writer, rows [][]string, total int) {
	Table(w, rows)
	if more := total - (len(rows) - 1); more > 0 {
		fmt.Fprintf(w, "and %s more\n", human.Thousands(more))
	}
}
