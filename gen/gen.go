// Package gen holds the compiled kernel half and its Go bindings, both made by
// bpf2go from the C in bpf/. Everything else in this folder is generated and
// committed, so that building needs no C compiler.
package gen

//go:generate go tool bpf2go -go-package gen -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type flow_key -type flow -type counter -type rule -type list_key -type address -type membership -type list_places -type learning -type port -type address_table -type addresses -type decision -type hook -type verdict -type reason -type action -type limits -type limit -type limit_key -type flow_state FW ../bpf/hybridfw.bpf.c -- -mcpu=v3 -O2 -g -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
