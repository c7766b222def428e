package lua

import (
	"strconv"
	"strings"
)

// FunctionsName is the name of the functions library; with an underscore it begins the name of each function.
const FunctionsName = "duestream"

const versionFunction = FunctionsName + "_version"

// Function is one function of the library, for any client that can FCALL. Its keys are Keys, which may be followed by
// More, and these by Later. Its arguments are Args, then any number of items with the arguments Each, then the actor if
// the call gives More. The reply is that of the function's script.
type Function struct {
	Name    string   `json:"name"`
	Does    string   `json:"does"`
	Keys    []string `json:"keys"`
	More    []string `json:"more_keys"`  // with these the queue's history records the call, if the queue keeps one
	Later   []string `json:"later_keys"` // with these the message also leaves the line of its ordering key
	Args    []string `json:"args"`
	Each    []string `json:"each"` // sent for every item, after Args
	Returns string   `json:"returns"`
	// AllowOOM says that a server at maxmemory runs the function. Only schedule is refused then, as a whole.
	AllowOOM bool `json:"allow_oom"`
}

// Functions returns the functions of the library, without the one that tells its version.
func Functions() []Function { return functionList() }

// FunctionsLibrary returns the library for FUNCTION LOAD: the files of lib that its scripts use, each once and with its
// comments, then each script as a function. So scripts and functions have one source. The version function and
// a comment tell the release; nothing else depends on it.
func FunctionsLibrary(release string) string {
	return strings.NewReplacer("{{release}}", cleanRelease(release), "{{level}}", strconv.Itoa(Level)).
		Replace(generatedText("functions"))
}

// FunctionsSource returns a hash of the library's code. Libraries with the same hash differ at most in comments.
func FunctionsSource() string { return functionsSource }

// cleanRelease replaces the characters of a release that could end the Lua string around it.
func cleanRelease(release string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._+-", r) {
			return r
		}
		return '_'
	}, release)
}
