//! georepl-cursor
