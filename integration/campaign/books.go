package campaign

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// partBytes is the approximate size of a part of the ledgers. An audit needs about ten times as much memory.
const partBytes = 24 << 20

// Audit reads all ledgers of a directory, and judges every message by the ledgers, the faults, and the final content of
// Redis (state). It first sorts the lines into files by message, and then works on one part of the messages at a time.
// So its memory does not grow with the run.
func Audit(dir string, visibility time.Duration, faults []Fault, state State) (Tally, error) {
	books, err := openBooks(dir)
	if err != nil {
		return Tally{}, err
	}
	defer books.remove()
	faults = append(slices.Clone(faults), books.stalls...)
	slices.SortFunc(faults, func(a, b Fault) int { return a.From.Compare(b.From) })
	a := newAuditor(visibility, faults, books.writers, state)
	letters := map[string][]Letter{}
	for _, l := range state.Letters {
		letters[l.ID] = append(letters[l.ID], l)
	}
	for _, part := range books.parts {
		records, err := books.read(part)
		if err != nil {
			return Tally{}, err
		}
		for _, id := range sortedKeys(records) {
			a.message(id, records[id], letters[id])
			delete(letters, id)
		}
	}
	for _, id := range sortedKeys(letters) {
		a.message(id, nil, letters[id])
	}
	a.keyLaw()
	return a.Tally, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// books holds the ledgers of a directory, in parts by message. A line of a part is the number of its writer and the
// original line.
type books struct {
	writers []*writer
	stalls  []Fault
	dir     string // directory of the parts
	parts   []string
	lines   int
}

func (b *books) remove() { _ = os.RemoveAll(b.dir) }

func openBooks(dir string) (b *books, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ledger"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	total := int64(0)
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			total += info.Size()
		}
	}
	b = &books{}
	if b.dir, err = os.MkdirTemp(dir, "parts-"); err != nil {
		return nil, err
	}
	n := int(total/partBytes) + 1
	files, outs := make([]*os.File, n), make([]*bufio.Writer, n)
	for i := range n {
		path := filepath.Join(b.dir, strconv.Itoa(i))
		if files[i], err = os.Create(path); err != nil {
			return nil, err
		}
		defer files[i].Close()
		outs[i] = bufio.NewWriterSize(files[i], 128<<10)
		b.parts = append(b.parts, path)
	}
	for _, path := range paths {
		if err := b.sort(path, outs); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
	for _, out := range outs {
		err = errors.Join(err, out.Flush())
	}
	return b, err
}

// sort distributes the lines of one ledger to the parts. A last line without a line break was cut short by a kill:
// its step did not happen, or its result was not reported to anybody.
func (b *books) sort(path string, outs []*bufio.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 256<<10)
	first, err := in.ReadSlice('\n')
	if err != nil {
		return nil // killed before its first line was complete
	}
	by, ok := parseWriter(bytes.TrimSuffix(first, []byte("\n")))
	if !ok {
		return fmt.Errorf("first line %q", first)
	}
	b.writers = append(b.writers, by)
	index := strconv.Itoa(len(b.writers) - 1)
	for {
		text, err := in.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		cells := bytes.SplitN(text, []byte(" "), 4)
		if len(cells) < 3 {
			return fmt.Errorf("line %q", text)
		}
		if string(cells[1]) == verbStall {
			b.stall(by, cells)
			continue
		}
		b.lines++
		out := outs[hash(string(bytes.TrimSuffix(cells[2], []byte("\n"))))%uint64(len(outs))]
		out.WriteString(index)
		out.WriteByte(' ')
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
}

// stall records a time in which a process did not run, as the process noticed itself.
func (b *books) stall(by *writer, cells [][]byte) {
	until, err := strconv.ParseInt(string(cells[0]), 10, 64)
	from, err2 := strconv.ParseInt(string(bytes.TrimSpace(cells[len(cells)-1])), 10, 64)
	if err == nil && err2 == nil {
		b.stalls = append(b.stalls, Fault{
			Kind: faultSlowProcess, From: time.UnixMicro(from), Until: time.UnixMicro(until), Hits: []string{by.name},
			Observed: true,
		})
	}
}

// read returns the records of one part, by message.
func (b *books) read(part string) (map[string][]record, error) {
	file, err := os.Open(part)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	records := map[string][]record{}
	in := bufio.NewScanner(file)
	for in.Scan() {
		index, text, _ := bytes.Cut(in.Bytes(), []byte(" "))
		n, err := strconv.Atoi(string(index))
		if err != nil || n >= len(b.writers) {
			return nil, fmt.Errorf("part of the ledgers: line %q", in.Text())
		}
		r, ok := parse(text, b.writers[n])
		if !ok {
			return nil, fmt.Errorf("ledger of %s: line %q", b.writers[n].name, text)
		}
		records[r.id] = append(records[r.id], r)
	}
	return records, in.Err()
}
