# Go, with cold caches: the home is new for every task.

## go build and run
# needs: go
### inside
printf 'module app\n\ngo 1.19\n' >go.mod && printf 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("built") }\n' >main.go
go vet ./... && [ "$(go run .)" = built ] && [ -z "$(gofmt -l .)" ]

## go test with httptest
# needs: go
### inside
printf 'module app\n\ngo 1.19\n' >go.mod
cat >app_test.go <<'G'
package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestServes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served") }))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(answer.Body); string(body) != "served" {
		t.Fatal(string(body))
	}
}
G
go test ./...

## go test -race finds a race
# timeout: 900
# needs: go cc setarch
### inside
printf 'module app\n\ngo 1.19\n' >go.mod
printf 'package app\n\nimport "testing"\n\nfunc TestRace(t *testing.T) {\n\tn, done := 0, make(chan bool)\n\tgo func() { n++; done <- true }()\n\tn++\n\t<-done\n}\n' >app_test.go
go test -race -exec 'setarch -R' ./... >said 2>&1 || true; grep -q 'DATA RACE' said

## modules from a proxy, into a cold cache
# needs: go zip
### before
mkdir -p proxy/example.test/dep/@v mod/example.test/dep@v1.0.0 && cd proxy/example.test/dep/@v
echo v1.0.0 >list && echo '{"Version":"v1.0.0"}' >v1.0.0.info && printf 'module example.test/dep\n' >v1.0.0.mod
cd ../../../../mod && printf 'module example.test/dep\n' >example.test/dep@v1.0.0/go.mod && printf 'package dep\n\nconst Answer = 42\n' >example.test/dep@v1.0.0/dep.go
zip -q -r -D ../proxy/example.test/dep/@v/v1.0.0.zip example.test && cd .. && rm -rf mod
### inside
export GOPROXY=file://$PWD/proxy GOFLAGS=-mod=mod GOSUMDB=off
mkdir app && cd app && printf 'module app\n\ngo 1.19\n' >go.mod && printf 'package main\n\nimport "example.test/dep"\n\nfunc main() { println(dep.Answer) }\n' >main.go
go get example.test/dep@v1.0.0 && go run . 2>&1 | grep -q 42

## go install into the home
# needs: go git
### before
git init -q -b main .
### inside
printf 'module app\n\ngo 1.19\n' >go.mod && printf 'package main\n\nfunc main() { println("installed") }\n' >main.go
go install . && "$HOME/go/bin/app" 2>&1 | grep -q installed

## go build where there is no repository
# needs: go git
# forbidden: a `.git` that is made inside is not run outside, so its name is taken
# allow: -c git="full"
### inside
printf 'module app\n\ngo 1.19\n' >go.mod && printf 'package main\n\nfunc main() { println("built") }\n' >main.go
go build -o app . && ./app
