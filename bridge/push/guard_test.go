package push

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A target on a private, local or otherwise special address is not dialled, unless the target's Networks allow the
// address. That also holds for such an address in the form of an IPv6 address. true = the address may be dialled.
func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "127.0.0.1": false, "::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "::": false,
		"10.0.0.1": false, "172.16.0.1": false, "172.32.0.1": true, "192.168.1.1": false, "169.254.169.254": false, "fe80::1": false,
		"fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "100.64.0.1": false, "100.128.0.1": true, "192.0.0.1": false,
		"192.0.2.1": false, "198.18.0.1": false, "198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "ff02::1": false,
		"240.0.0.1": false, "255.255.255.255": false, "64:ff9b::7f00:1": false, "64:ff9b:1::1": false, "2002:7f00:1::": false,
		"2001::1": false, "2001:db8::1": false, "fec0::1": false, "::7f00:1": false, "100::1": false, "100:0:0:1::1": false,
		"168.63.129.16": false, "::ffff:0:10.0.0.1": false, "2001:2::1": false, "2001:10::1": false, "::ffff:8.8.8.8": true,
	} {
		if got := (Target{}).mayDial(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s may be dialled: %t", text, got)
		}
	}
	// The same network in two forms. Regression: the second form matched nothing.
	for _, network := range []string{"10.1.0.0/16", "::ffff:10.1.0.0/112"} {
		allowed := Target{Networks: []netip.Prefix{netip.MustParsePrefix(network)}}
		for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": false,
			"::ffff:10.2.0.1": false, "64:ff9b::a01:203": false, "2002:a01:203::1": false} {
			if got := allowed.mayDial(netip.MustParseAddr(text)); got != want {
				t.Errorf("%s may be dialled where %s is allowed: %t", text, network, got)
			}
		}
	}
	v := newReceiver(t, nil)
	for _, url := range []string{v.URL, strings.Replace(v.URL, "127.0.0.1", "localhost", 1)} {
		target := to(url)
		target.Networks = nil
		p := newPoster(target, nil, nil)
		down, err := p.deliver(t.Context(), message("m", "x"))
		if !errors.Is(err, ErrBlocked) || !down {
			t.Errorf("%s: %v, down: %t", url, err, down)
		}
	}
	redistest.Want(t, "requests that came through", len(v.requests()), 0)
}

// A name is looked up again for each connection, and the result is checked each time. An earlier, allowed result does
// not count.
func TestANameThatChangesItsAddressIsRefused(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, func(_ int, _ request, w http.ResponseWriter) { w.Header().Set("Connection", "close") })
	_, port, _ := net.SplitHostPort(v.Listener.Addr().String())
	other, err := net.Listen("tcp", "127.0.0.2:"+port) // the same port, at an allowed address
	if err != nil {
		t.Fatal(err)
	}
	public := httptest.NewUnstartedServer(v.Config.Handler)
	_ = public.Listener.Close()
	public.Listener = other
	public.Start()
	t.Cleanup(public.Close)
	var address atomic.Pointer[net.IP]
	set := func(text string) { ip := net.ParseIP(text).To4(); address.Store(&ip) }
	set("127.0.0.2")
	target := to("http://partner.example:" + port + "/")
	target.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	p := newPoster(target, nil, fakeDNS(t, &address))
	if _, err := p.deliver(t.Context(), message("m", "x")); err != nil {
		t.Fatal(err)
	}
	set("127.0.0.1")
	_, err = p.deliver(t.Context(), message("m", "x"))
	if !errors.Is(err, ErrBlocked) {
		t.Errorf("after the change: %v", err)
	}
	redistest.Want(t, "requests that came through", len(v.requests()), 1)
}

// fakeDNS answers every query for an IPv4 address with the address that is set, and any other query with nothing.
func fakeDNS(t *testing.T, address *atomic.Pointer[net.IP]) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			end := 12 // length of the header; the name follows, label by label
			for end < n && buffer[end] != 0 {
				end += int(buffer[end]) + 1
			}
			end += 5 // the empty label, and the type and class of the question
			if end > n {
				continue
			}
			reply := append([]byte{}, buffer[:end]...)
			reply[2], reply[3] = 0x81, 0x80 // flags of a reply without an error
			clear(reply[6:12])              // counts of records: none yet
			const typeA = 1
			if binary.BigEndian.Uint16(buffer[end-4:]) == typeA {
				reply[7] = 1 // one answer: the name of the question, type A, class IN, TTL 0, four bytes
				reply = append(reply, 0xc0, 12, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
				reply = append(reply, *address.Load()...)
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// A proxy from the environment would be dialled in place of the target, and the check would see only the proxy's
// address.
func TestNoProxyIsUsed(t *testing.T) {
	proxy := newReceiver(t, nil)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	p := newPoster(to("http://203.0.113.7/"), nil, nil)
	if _, err := p.deliver(t.Context(), message("m", "x")); !errors.Is(err, ErrBlocked) {
		t.Error(err)
	}
	redistest.Want(t, "requests through the proxy", len(proxy.requests()), 0)
}

// A server without a valid certificate for the URL's host gets no message.
func TestCertificatesAreVerified(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		t.Error("a server without a valid certificate got a request")
	}))
	server.Config.ErrorLog = quietLog
	t.Cleanup(server.Close)
	p := newPoster(to(server.URL), nil, nil)
	down, err := p.deliver(t.Context(), message("m", "x"))
	if err == nil || !down || !strings.Contains(err.Error(), "certificate") {
		t.Error(down, err)
	}
}
