// conv
