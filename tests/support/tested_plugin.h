// Runs the tests of operators on the operators of a plug-in library (penstock/plugin.h) instead of
// the built-in ones:
//
//   PENSTOCK_TEST_PLUGIN=./my.so PENSTOCK_TEST_PLUGIN_CASES=cases.pst build/tests/property_test
//
// and so gradients_numeric_test and sharding_rules_numeric_test. Each statement of the graph in
// cases.pst with an operator that is not built in is a case: the types of its operands and its
// attributes. Floats are f64 and are drawn from [-2, 2).
//
// Thread rule: pure functions of the environment and the files. What is wrong with those ends the
// program with a message.

#ifndef PENSTOCK_TESTS_SUPPORT_TESTED_PLUGIN_H_
#define PENSTOCK_TESTS_SUPPORT_TESTED_PLUGIN_H_

#include <string>
#include <vector>

#include "penstock/registries.h"
#include "tests/support/op_cases.h"

namespace penstock::testing {

// Whether there is one, and its path. Nodes in processes of their own load it, too.
bool HasPluginUnderTest();
std::string PluginUnderTest();

// What is built in, with what the plug-in adds if there is one.
Registries TestedRegistries();

// The cases of the plug-in.
std::vector<OpCase> PluginOpCases();

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_TESTED_PLUGIN_H_
