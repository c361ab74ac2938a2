// Owns the headers that all tests share in precompiled form (tests/CMakeLists.txt).
int main() {}
