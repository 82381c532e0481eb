/* What it declares is there before every text: jitload_cpu.h. */
