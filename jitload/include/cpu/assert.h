/* assert() for device code: it ends the launch and names block and thread. Like C's header it has no include guard. */
#undef assert
#if defined(NDEBUG)
#define assert(...) ((void)0)
#else
#define assert(...)        \
  ((__VA_ARGS__) ? (void)0 \
                 : (void)__jitload_stop("%s:%d: assertion `%s` failed", __FILE__, __LINE__, #__VA_ARGS__))
#endif
