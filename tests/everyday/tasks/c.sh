# C and C++: building, checking, looking inside.

## make
# needs: make cc
# test
### inside
printf '#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n' >app.c
printf 'app: app.c\n\tcc -O1 -g -o app app.c\n' >Makefile
make -s -j2 && [ "$(./app)" = built ]

## cmake, ninja, ctest
# needs: cmake ninja g++
### inside
printf '#include <iostream>\nint main() { std::cout << "built\\n"; }\n' >app.cc
printf 'cmake_minimum_required(VERSION 3.10)\nproject(app CXX)\nadd_executable(app app.cc)\nenable_testing()\nadd_test(NAME runs COMMAND app)\n' >CMakeLists.txt
cmake -G Ninja -S . -B build >/dev/null && cmake --build build >/dev/null && cd build && ctest --output-on-failure >/dev/null

## meson
# needs: meson ninja cc
### inside
printf 'int main(void) { return 0; }\n' >app.c
printf "project('app', 'c')\nexe = executable('app', 'app.c')\ntest('runs', exe)\n" >meson.build
meson setup build >/dev/null && meson test -C build >/dev/null

## AddressSanitizer finds an overflow
# needs: cc
# test
### inside
printf '#include <stdlib.h>\nint main(int n, char **v) { (void)v; char *p = malloc(8); p[7 + n] = 1; return p[7 + n] - 1; }\n' >app.c
cc -g -fsanitize=address app.c -o app && ./app 2>report && exit 1
grep -q heap-buffer-overflow report

## LeakSanitizer finds a leak
# needs: cc
# test
### inside
printf '#include <stdlib.h>\nint main(void) { void * volatile p = malloc(8); p = 0; return p != 0; }\n' >app.c
cc -g -fsanitize=address app.c -o app && ./app 2>report && exit 1
grep -q 'detected memory leaks' report

## UndefinedBehaviorSanitizer
# needs: cc
### inside
printf 'int main(int n, char **v) { (void)v; return (2147483647 + n) == 0; }\n' >app.c
cc -fsanitize=undefined app.c -o app && { ./app 2>report || true; } && grep -q 'signed integer overflow' report

## ThreadSanitizer finds a race
# needs: cc setarch
### inside
cat >app.c <<'C'
#include <pthread.h>
int n; static void *go(void *x) { for (int i = 0; i < 1000; i++) n++; return x; }
int main(void) { pthread_t a, b; pthread_create(&a, 0, go, 0); pthread_create(&b, 0, go, 0); pthread_join(a, 0); pthread_join(b, 0); return 0; }
C
cc -g -fsanitize=thread app.c -o app -pthread && { setarch -R ./app 2>report || true; } && grep -q 'data race' report

## gdb: break, backtrace, values
# needs: gdb cc
### inside
printf 'int twice(int n) { return n * 2; }\nint main(void) { return twice(21) - 42; }\n' >app.c && cc -g app.c -o app
gdb -q -batch -ex 'break twice' -ex run -ex backtrace -ex 'print n' ./app >said 2>&1 && grep -q 'twice (n=21)' said && grep -q '= 21' said

## gdb attaches to a running program
# needs: gdb cc
### inside
printf '#include <unistd.h>\nint main(void) { for (;;) pause(); }\n' >app.c && cc -g app.c -o app
./app & pid=$!; gdb -q -batch -p $pid -ex backtrace -ex detach >said 2>&1 || true; kill $pid; grep -q 'main ()' said

## gdbserver on localhost
# needs: gdb gdbserver cc
### inside
printf 'int main(void) { return 0; }\n' >app.c && cc -g app.c -o app
gdbserver --once 127.0.0.1:4711 ./app >/dev/null 2>server & until_ok grep -q Listening server
gdb -q -batch -ex 'target remote 127.0.0.1:4711' -ex 'break main' -ex continue -ex kill ./app >said 2>&1 || true; grep -q 'Breakpoint 1, main' said

## strace a program and its children
# needs: strace
# test
### inside
strace -f -o trace sh -c 'cat /etc/hostname >/dev/null; true' && grep -q execve trace && grep -q /etc/hostname trace

## strace attaches to a running program
# needs: strace
### inside
sleep 30 & pid=$!; timeout -s INT 2 strace -p $pid -o trace || true; kill $pid; [ -s trace ]

## valgrind
# needs: valgrind cc
### inside
printf '#include <stdlib.h>\nint main(void) { void * volatile p = malloc(8); p = 0; return p != 0; }\n' >app.c && cc -g app.c -o app
valgrind --leak-check=full ./app 2>report || true; grep -q 'definitely lost: 8 bytes' report

## perf stat
# needs: perf
# forbidden: no perf events, which look into the kernel
# allow: --sandbox danger-full-access
### inside
perf stat -e task-clock true 2>report && grep -q task-clock report

## ccache
# needs: ccache cc
### inside
printf 'int main(void) { return 0; }\n' >app.c
ccache cc -c app.c -o one.o && ccache cc -c app.c -o two.o && ccache -s -v | grep -q -E 'Hits: +1 /|cache hit.* 1$'

## a shared library and its loader path
# needs: cc
### inside
printf 'int answer(void) { return 42; }\n' >lib.c && cc -shared -fPIC lib.c -o libanswer.so
printf 'int answer(void); int main(void) { return answer() - 42; }\n' >app.c && cc app.c -L. -lanswer -o app && LD_LIBRARY_PATH=$PWD ./app
objdump -d app | grep -q main && nm libanswer.so | grep -q answer

## configure, make install into a prefix
# needs: make cc
### inside
printf 'int main(void) { return 0; }\n' >app.c
printf 'prefix = $(CURDIR)/out\napp: app.c\n\tcc -o app app.c\ninstall: app\n\tinstall -D -m 755 app $(prefix)/bin/app\n' >Makefile
make -s install && ./out/bin/app
