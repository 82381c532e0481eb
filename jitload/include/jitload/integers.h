/* What a generated wrapper needs of <stdint.h> and <stddef.h>: a compiler takes 2 ms to read those. */
#ifndef JITLOAD_INTEGERS_H_
#define JITLOAD_INTEGERS_H_

typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;

#ifndef NULL
#ifdef __cplusplus
#define NULL __null
#else
#define NULL ((void*)0)
#endif
#endif

#endif /* JITLOAD_INTEGERS_H_ */
