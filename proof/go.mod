module github.com/go-leasehold/leasehold/proof

go 1.26.0
