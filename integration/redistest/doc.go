// Package redistest gives tests real Redis and Valkey servers, and the tools that a guarantee test needs: unique
// names, a function that waits for a condition, a command counter, a proxy that cuts connections, and a ledger.
//
// The shared server of a test process comes from the first of these that works:
//
//  1. the server at DUESTREAM_TEST_REDIS_URL;
//  2. a container of the local Docker engine. A helper process (go run integration/redistest/helper) starts it through
//     dockertest, because whoever imports a package has to fetch what its tests import. The image is
//     DUESTREAM_TEST_IMAGE, by default redis:7.0, or else any of [Images] that is there, or else one that can be pulled
//     within a minute;
//  3. redis-server or valkey-server on the PATH, as a child process on a free port;
//  4. Debian's redis-server package, installed with apt-get when the tests run as root;
//  5. otherwise the test fails and says what to do. No test is ever skipped because there is no server.
//
// A package uses it with one line. It ends the servers that the tests started, and then looks for leaked goroutines:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// Everything listens on 127.0.0.1, and never on port 6379. A test process that is killed leaves nothing behind for
// long. A child process dies with it (on Linux). A container ends at the latest a minute after the test timeout, and
// the next test run removes it at the latest.
//
// Invariants:
//
//   - A server that belongs to one test comes back on the same address with the same data
//     (TestOwnServerComesBackWithItsData).
//   - An image is run at most once per test process (TestEachRunsEveryImageOnce).
//   - Keys with a prefix are deleted after the test (TestPrefixLeavesNoKeyBehind).
//   - A request cut by CutAfterForward was executed by the server (TestProxyCutsAfterTheServerExecuted).
//   - A killed test process leaves no server behind (TestServerDiesWithTheTestProcess).
package redistest
