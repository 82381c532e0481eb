/* The switch between fibers, which costs little more than a call. */
#ifndef JITLOAD_CPU_SWITCH_H_
#define JITLOAD_CPU_SWITCH_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

struct Context {
  void* stack_pointer;
};

#if defined(__x86_64__)
/* Save the registers that the ABI preserves over a call, exchange the stack pointer, and restore them. */
extern "C" void jitload_cpu_switch(Context* from, const Context* to);
__asm__(
    ".pushsection .text\n"
    ".globl jitload_cpu_switch\n"
    ".hidden jitload_cpu_switch\n"
    ".type jitload_cpu_switch, @function\n"
    "jitload_cpu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq (%rsi), %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size jitload_cpu_switch, .-jitload_cpu_switch\n"
    ".popsection\n");

void prepare(Context* context, char* stack_end, void (*entry)()) {
  void** top = (void**)((uintptr_t)stack_end & ~(uintptr_t)15);
  *--top = NULL; /* the return address of `entry`, which never returns */
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = NULL;
  context->stack_pointer = top;
}
#elif defined(__aarch64__)
extern "C" void jitload_cpu_switch(Context* from, const Context* to);
__asm__(
    ".pushsection .text\n"
    ".globl jitload_cpu_switch\n"
    ".hidden jitload_cpu_switch\n"
    ".type jitload_cpu_switch, %function\n"
    "jitload_cpu_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n"
    "  ldr x9, [x1]\n  mov sp, x9\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size jitload_cpu_switch, .-jitload_cpu_switch\n"
    ".popsection\n");

void prepare(Context* context, char* stack_end, void (*entry)()) {
  void** top = (void**)((uintptr_t)stack_end & ~(uintptr_t)15);
  top -= 20;
  memset(top, 0, 160);
  top[11] = (void*)entry; /* x30: where the switch returns to */
  context->stack_pointer = top;
}
#else
#error "the CPU target runs on x86-64 and aarch64"
#endif

}  // namespace

#endif /* JITLOAD_CPU_SWITCH_H_ */
