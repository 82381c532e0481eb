#define STEP 100
