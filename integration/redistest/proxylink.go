package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	cutTimeout      = 10 * time.Second // for the server to finish with a connection that is being cut
	maxProxyRequest = 512 << 20
)

// link is one connection through the proxy.
type link struct {
	client, server *net.TCPConn
	mute           atomic.Bool // replies are dropped, because the connection is being cut
	torn           atomic.Bool // only half of the next reply is passed on
	lost           atomic.Bool // bytes were dropped, so the connection cannot be used any more
	once           sync.Once
	closed         chan struct{}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		l.client.Close()
		l.server.Close()
	})
}

// serve forwards one connection until either side or the proxy closes it.
func (p *Proxy) serve(client *net.TCPConn) {
	upstream, err := net.DialTimeout("tcp", p.server.Addr(), rawTimeout)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: upstream.(*net.TCPConn), closed: make(chan struct{})}
	defer l.close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	}()

	down := make(chan struct{})
	go func() {
		defer close(down)
		p.replies(l)
	}()
	p.requests(l, down)
	l.close()
	<-down
}

// requests forwards the client's requests, or does to them what judge decides, until the connection is to be closed. It
// reads them one by one, because the server executes only complete requests. down is closed when replies has ended.
func (p *Proxy) requests(l *link, down <-chan struct{}) {
	in := bufio.NewReaderSize(l.client, 64<<10)
	out := bufio.NewWriterSize(l.server, 64<<10)
	var request []byte
	for {
		var command string
		var err error
		if request, command, err = readRequest(in, request[:0]); err != nil {
			return
		}
		switch p.judge(command) {
		case swallow:
			l.lost.Store(true)
			continue
		case cut:
			l.mute.Store(true)
			if _, err := out.Write(request); err != nil || out.Flush() != nil {
				return
			}
			// When no more input can come, the server executes the requests that it has, and then closes the
			// connection. So the end of the replies shows that it has executed all of them.
			_ = l.server.SetReadDeadline(time.Now().Add(cutTimeout))
			_ = l.server.CloseWrite()
			<-down
			p.addCut(cut)
			return
		case drop:
			p.addCut(drop)
			return
		case tear:
			l.torn.Store(true)
		}
		p.linger(l)
		if _, err := out.Write(request); err != nil {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// replies copies the server's bytes to the client until the server closes the connection, or until it has torn a reply.
func (p *Proxy) replies(l *link) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		switch {
		case l.mute.Load():
		case n > 0 && p.isStalled():
			l.lost.Store(true)
		case n > 0:
			p.linger(l)
			torn := l.torn.Load()
			if torn {
				n /= 2
			}
			if _, err := l.client.Write(buf[:n]); err != nil || torn {
				if torn {
					p.addCut(tear) // before the client can see it
				}
				l.close()
				return
			}
		}
		if err != nil {
			if !l.mute.Load() {
				l.close()
			}
			return
		}
	}
}

// readRequest appends one request to buf as the client wrote it, and returns the name of its command in upper case.
func readRequest(r *bufio.Reader, buf []byte) (request []byte, command string, err error) {
	buf, head, err := readHead(r, buf)
	if err != nil {
		return buf, "", err
	}
	if !strings.HasPrefix(head, "*") { // an inline command
		name, _, _ := strings.Cut(strings.TrimSpace(head), " ")
		return buf, strings.ToUpper(name), nil
	}
	args, err := strconv.Atoi(head[1:])
	if err != nil {
		return buf, "", fmt.Errorf("request %q: %w", head, err)
	}
	for i := range args {
		if buf, head, err = readHead(r, buf); err != nil {
			return buf, "", err
		}
		size, err := strconv.Atoi(strings.TrimPrefix(head, "$"))
		if err != nil || size < 0 || len(buf)+size > maxProxyRequest {
			return buf, "", fmt.Errorf("argument %q", head)
		}
		at := len(buf)
		buf = append(buf, make([]byte, size+2)...)
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			return buf, "", err
		}
		if i == 0 {
			command = strings.ToUpper(string(buf[at : at+size]))
		}
	}
	return buf, command, nil
}

// readHead appends one line to buf, and also returns it without its line end.
func readHead(r *bufio.Reader, buf []byte) ([]byte, string, error) {
	line, err := r.ReadString('\n')
	return append(buf, line...), strings.TrimRight(line, "\r\n"), err
}
