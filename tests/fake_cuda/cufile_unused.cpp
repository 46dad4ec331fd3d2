// Functions that KvikIO looks for when it loads cuFile (without them it ends the process), and that
// nothing here calls.
#include "cufile.hpp"

namespace fake {
namespace {

CUfileError_t refuse(const char* function) {
  const CUfileError_t error = enter(function, true);
  return error.err != CU_FILE_SUCCESS ? error : failure(CU_FILE_PLATFORM_NOT_SUPPORTED);
}

}  // namespace
}  // namespace fake

FAKE_EXPORT CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t*, unsigned) {
  return fake::refuse("cuFileBatchIOSetUp");
}

FAKE_EXPORT CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t, unsigned, CUfileIOParams_t*,
                                              unsigned) {
  return fake::refuse("cuFileBatchIOSubmit");
}

FAKE_EXPORT CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t, unsigned, unsigned*,
                                                 CUfileIOEvents_t*, struct timespec*) {
  return fake::refuse("cuFileBatchIOGetStatus");
}

FAKE_EXPORT CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t) {
  return fake::refuse("cuFileBatchIOCancel");
}

FAKE_EXPORT void cuFileBatchIODestroy(CUfileBatchHandle_t) {
  fake::enter("cuFileBatchIODestroy", true);
}

FAKE_EXPORT CUfileError_t cuFileReadAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*,
                                          CUstream) {
  return fake::refuse("cuFileReadAsync");
}

FAKE_EXPORT CUfileError_t cuFileWriteAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*,
                                           CUstream) {
  return fake::refuse("cuFileWriteAsync");
}

FAKE_EXPORT CUfileError_t cuFileStreamRegister(CUstream, unsigned) {
  return fake::refuse("cuFileStreamRegister");
}

FAKE_EXPORT CUfileError_t cuFileStreamDeregister(CUstream) {
  return fake::refuse("cuFileStreamDeregister");
}
