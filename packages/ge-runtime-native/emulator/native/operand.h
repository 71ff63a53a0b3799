// Objects of the single-operator interface.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "acl.h"

struct aclTensorDesc {
  int dtype = acl::kUndefined;
  std::vector<int64_t> dims;          // logical
  std::vector<int64_t> storage_dims;  // as stored; equal to dims unless set
  int format = 2;
  int storage_format = 2;
  int placement = acl::kDeviceMemory;
  std::string name;
};

struct aclDataBuffer {
  void* data;
  size_t size;
};

struct aclopAttr {
  std::map<std::string, std::pair<std::string, std::string>> values;  // name to kind and JSON value
};
