package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/finalizerd/finalizerd/gen/finalizer/v1"
	"github.com/finalizerd/finalizerd/server"
)

const moduleRoot = "../.."

// step is one command of the README and what its output must contain.
type step struct {
	command string
	want    []string
}

// consoleBlock is a fenced block that a comment <!-- e2e: name --> marks.
type consoleBlock struct {
	name  string
	steps []step
}

// consoleBlocks finds the marked ```console blocks. In them a line that begins
// with "$ " is a command, with its continuations after a backslash; the lines up
// to the next command are parts of its output; "..." stands for what is left out.
func consoleBlocks(markdown string) []consoleBlock {
	marked := regexp.MustCompile("(?s)<!-- e2e: ([^>]+?) -->\\s*\n```console\n(.*?)\n```")
	var blocks []consoleBlock
	for _, match := range marked.FindAllStringSubmatch(markdown, -1) {
		block := consoleBlock{name: match[1]}
		continued := false
		for _, line := range strings.Split(match[2], "\n") {
			last := len(block.steps) - 1
			command, isCommand := strings.CutPrefix(line, "$ ")
			switch {
			case continued:
				block.steps[last].command += "\n" + line
			case isCommand:
				block.steps = append(block.steps, step{command: command})
			case last < 0, strings.TrimSpace(line) == "", strings.TrimSpace(line) == "...":
			default:
				block.steps[last].want = append(block.steps[last].want, line)
				continue
			}
			continued = (isCommand || continued) && strings.HasSuffix(line, `\`)
		}
		blocks = append(blocks, block)
	}
	return blocks
}

// squeeze takes all white space out: protobuf's JSON puts it in at random, to
// keep people from relying on it.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

// grpcurlDir is the folder with the grpcurl that the commands call.
func grpcurlDir(t *testing.T) string {
	t.Helper()
	path := os.Getenv(grpcurlVariable)
	if path == "" {
		path = filepath.Join(moduleRoot, ".build", "bin", "grpcurl")
		if _, err := os.Stat(path); err != nil {
			if path, err = exec.LookPath("grpcurl"); err != nil {
				t.Fatalf("no grpcurl: set %s to its path (%v)", grpcurlVariable, err)
			}
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	// Under its own name, whatever the file is called.
	dir := t.TempDir()
	if err := os.Symlink(path, filepath.Join(dir, "grpcurl")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// demo is the workflow that the README speaks of: hello, of five pods. Nothing
// of hello-2 is stored yet, hello-3 to hello-5 have failed.
func demo(t *testing.T) *fixture {
	f := newFixture(t)
	f.ns = "demo"
	_, err := suite.admin.CoreV1().Namespaces().Create(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	wf := f.workflow("hello", podNode("hello-1", "Succeeded"), podNode("hello-2", "Running"),
		podNode("hello-3", "Failed"), podNode("hello-4", "Failed"), podNode("hello-5", "Failed"))
	f.pod(wf, "hello-1", inPhase(corev1.PodSucceeded))
	f.pod(wf, "hello-2", inPhase(corev1.PodRunning))
	for _, name := range []string{"hello-3", "hello-4", "hello-5"} {
		f.pod(wf, name, inPhase(corev1.PodFailed))
	}
	return f
}

func TestTheCommandsOfTheREADMEDoWhatItSays(t *testing.T) {
	markdown, err := os.ReadFile(filepath.Join(moduleRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := consoleBlocks(string(markdown))
	if marks := strings.Count(string(markdown), "<!-- e2e:"); len(blocks) == 0 || len(blocks) != marks {
		t.Fatalf("%d marks <!-- e2e: --> and %d console blocks right after one", marks, len(blocks))
	}
	f := demo(t)
	d := f.newDaemon(daemonOptions{name: "readme", grpc: server.DefaultGRPCAddress, http: server.DefaultHTTPAddress})
	f.waitSeen(d, workflow{name: "hello"}, "five pods", func(p *pb.Progress) bool { return p.GetPods() == 5 })
	env := append(os.Environ(), "PATH="+grpcurlDir(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, block := range blocks {
		for _, s := range block.steps {
			command := exec.CommandContext(f.ctx, "bash", "-c", s.command)
			command.Env = env
			output, err := command.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) { // what it says is judged, not its exit code
				t.Fatalf("%s: %s: %v", block.name, s.command, err)
			}
			for _, want := range s.want {
				if !strings.Contains(squeeze(string(output)), squeeze(want)) {
					t.Errorf("%s: $ %s\nwant in its output: %s\ngot: %s", block.name, s.command, want, output)
				}
			}
		}
	}
}

func TestConsoleBlocksAreReadAsTheConventionSays(t *testing.T) {
	got := consoleBlocks("<!-- e2e: one -->\n```console\n$ a \\\n  b\n  \"x\": 1\n...\n$ c\n```\n```console\n$ not marked\n```\n")
	if len(got) != 1 || got[0].name != "one" || len(got[0].steps) != 2 {
		t.Fatalf("got %+v", got)
	}
	if s := got[0].steps[0]; s.command != "a \\\n  b" || len(s.want) != 1 || squeeze(s.want[0]) != `"x":1` {
		t.Errorf("got %+v", s)
	}
}
