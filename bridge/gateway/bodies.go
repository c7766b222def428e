package gateway

import (
	"compress/gzip"
	"io"
	"time"
)

const (
	bodyTime   = 10 * time.Second // to read a body that is not a stream of lines
	lingerTime = time.Second      // to read the remaining body of a refused request, before the answer is sent

	// Memory for the bodies of one token.
	bytesPerBody  = 1 << 20  // for each body that the token may send at once
	minTokenBytes = 64 << 20 // at least so much in all; more than the largest line
)

// countedBody is a request body that counts the bytes that were read.
type countedBody struct {
	io.ReadCloser
	n int64
}

func (b *countedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

// chargedBody is a request body that is read into memory. Its bytes count for its token until giveBack.
type chargedBody struct {
	io.ReadCloser
	bytes *perToken
	token string
	n     int // bytes that count at present
}

func (b *chargedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.n += n
	if b.bytes.add(b.token, n) {
		return n, errBodies(ErrBusy)
	}
	return n, err
}

// giveBack takes the body's bytes off its token's count.
func (b *chargedBody) giveBack() {
	b.bytes.add(b.token, -b.n)
	b.n = 0
}

// unzipped decompresses a body. It reads nothing before the first Read.
type unzipped struct {
	body io.ReadCloser
	z    *gzip.Reader
}

func (u *unzipped) Read(p []byte) (n int, err error) {
	if u.z == nil {
		if u.z, err = gzip.NewReader(u.body); err != nil {
			return 0, malformed("the body is not valid gzip")
		}
	}
	if n, err = u.z.Read(p); err != nil && err != io.EOF {
		return n, malformed("the body is not valid gzip")
	}
	return n, err
}

func (u *unzipped) Close() error { return u.body.Close() }
