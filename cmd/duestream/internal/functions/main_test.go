package functions_test

import (
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m) }
