// Package redistest gives tests real Redis and Valkey servers, and the instruments that a guarantee test needs:
// unique names, a condition poller, a command counter, a proxy that cuts connections, and a ledger.
//
// Where the shared server of a test process comes from, in this order:
//
//  1. the server at DUESTREAM_TEST_REDIS_URL;
//  2. a Docker engine, through dockertest, in a helper process (go run integration/redistest/helper) because whoever imports
//     a package has to fetch what its tests import: DUESTREAM_TEST_IMAGE, by default redis:7.0, else any of [Images] that is
//     there, else one that can be pulled within a minute;
//  3. redis-server or valkey-server on the PATH, as a child process on a free port;
//  4. Debian's redis-server package, installed with apt-get when the tests run as root;
//  5. otherwise the test fails and says what to do. No test is ever skipped for want of a server.
//
// A package uses it with one line, which ends what was started and then looks for leaked goroutines:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// Everything listens on 127.0.0.1 and never on port 6379. A test process that is killed leaves nothing for long: a
// child process dies with it (on Linux), a container ends at the latest a minute after the test timeout and is removed,
// at the latest by the next test run.
//
// Invariants:
//
//   - A server of a test's own comes back on the same address with the same data (TestOwnServerComesBackWithItsData).
//   - An image is run at most once per test process (TestEachRunsEveryImageOnce).
//   - Keys under a prefix are gone after the test (TestPrefixLeavesNoKeyBehind).
//   - A request cut by CutAfterForward was executed by the server (TestProxyCutsAfterTheServerExecuted).
//   - A killed test process leaves no server behind (TestServerDiesWithTheTestProcess).
package redistest
