//! georepl
