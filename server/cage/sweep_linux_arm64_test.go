package cage

var forks []int
