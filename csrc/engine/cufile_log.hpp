#pragma once

#include <string>

namespace gdsckpt {

/// Where cuFile logs while we use it: a file in memory that goes with the process. Left alone it
/// makes a cufile.log in whatever directory the program was started in.
class CuFileLog {
 public:
  /// Where no such file can be had, the log goes to /dev/null.
  CuFileLog();
  ~CuFileLog();
  CuFileLog(const CuFileLog&) = delete;
  CuFileLog& operator=(const CuFileLog&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// The last error that was logged, without time and process; empty if there is none. What was
  /// logged so far is dropped, so that the file stays small.
  std::string take_last_error();

 private:
  int fd_;
  std::string path_;
};

/// True where cuFile's configuration file (CUFILE_ENV_PATH_JSON, or /etc/cufile.json) says where to
/// log: a line with the key "dir", which stands nowhere else, outside a comment.
bool has_configured_log();

/// Sets an environment variable for its lifetime, unless it is set.
///
/// cuFile 1.20 takes the path of its log from nothing else: CUFILE_PARAM_ENV_LOGFILE_PATH and
/// CUFILE_PARAM_LOG_DIR were accepted and had no effect when tried. It reads it when the driver is
/// opened, so that is all the time the variable is there for.
class EnvironmentDefault {
 public:
  EnvironmentDefault(const char* name, const std::string& value);
  ~EnvironmentDefault();
  EnvironmentDefault(const EnvironmentDefault&) = delete;
  EnvironmentDefault& operator=(const EnvironmentDefault&) = delete;

 private:
  const char* const name_;
  bool is_set_ = false;
};

}  // namespace gdsckpt
